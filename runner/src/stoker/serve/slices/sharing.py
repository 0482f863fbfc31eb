"""Takes turns at a device: asks the API, tells the engine, and keeps a journal. `turns` decides what and when."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import say
from stoker.serve.slices import guard
from stoker.serve.slices.hooks import HookError, Hooks
from stoker.serve.slices.leases import LeaseConflictError, Leases, NoAnswerError
from stoker.serve.slices.permits import Fencing, Permits
from stoker.serve.slices.record import lease_of, record_of
from stoker.serve.slices.reloads import Reloads
from stoker.serve.slices.turns import EngineState, Park, ReadLease, Reload, Turns, Use, Write

# How long the guard may take to end an engine.
_END_SECONDS = 5.0
# How often the guard, the load and signals are looked at.
_CHECK_SECONDS = 0.25


class Journal:
    """One JSON line for each thing that happened.

    Args:
        path: the file; None for none.
        lease: name of the Lease.
        me: who writes.
    """

    def __init__(self, path: Path | None, lease: str, me: str) -> None:
        self._path, self._fixed = path, {"lease": lease, "me": me}

    def note(self, event: str, **more: Any) -> None:
        """Write a line: `at` is the machine's own clock, for all containers of a machine the same."""
        if self._path is None:
            return
        line = {"at": guard.now(), "time": datetime.now(UTC).isoformat(), "event": event, **self._fixed, **more}
        with self._path.open("a") as stream:
            stream.write(json.dumps(line) + "\n")


class Sharing:
    """One engine's part in sharing a device.

    Args:
        leases: the API.
        name: of the Lease.
        turns: decides.
        hooks: tell the engine.
        permits: tell the guard.
        reloads: what the watcher asks for.
        journal: of what happened.
        idle_seconds: how long the engine must be without requests to count as idle; None: it always wants the device.
    """

    def __init__(
        self,
        leases: Leases,
        name: str,
        turns: Turns,
        hooks: Hooks,
        permits: Permits,
        reloads: Reloads,
        journal: Journal,
        idle_seconds: float | None,
    ) -> None:
        self._leases, self._name, self._turns, self._hooks = leases, name, turns, hooks
        self._permits, self._reloads = permits, reloads
        self._journal, self._idle_seconds = journal, idle_seconds
        self._lease: dict[str, Any] = {}
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._asking = self._telling = self._written = False
        self._problem = ""
        self._failure: RunError | None = None
        self._busy = guard.now()
        self._load: int | None = None
        self._turn: tuple[int, float] | None = None

    def run(self, stop: threading.Event) -> None:
        """Take turns until the stop, then give the device back.

        Raises:
            RunError: the Lease or the engine cannot be used (78).
        """
        self._lease = self._first_look(stop)
        if self._idle_seconds is not None:
            threading.Thread(target=self._watch_load, args=(stop,), daemon=True).start()
        end: float | None = None
        while True:
            self._check(leave=stop.is_set() or self._failure is not None)
            now = guard.now()
            if stop.is_set() or self._failure is not None:
                end = end or now + self._turns.rules.duration + _END_SECONDS
                if self._at_rest() or now >= end:
                    break
            self._go_on()
            try:
                happened = self._events.get(timeout=min(self._turns.pause(guard.now()), _CHECK_SECONDS))
            except queue.Empty:
                continue
            happened()
        if self._failure is not None:
            raise self._failure

    def _first_look(self, stop: threading.Event) -> dict[str, Any]:
        while True:
            try:
                lease = self._leases.read(self._name)
                record_of(lease)
            except NoAnswerError as error:
                self._report(str(error))
                if stop.wait(self._turns.rules.renew):
                    raise RunError(ExitCode.STOPPED, "stopped before the API server answered") from error
            else:
                return lease

    def _at_rest(self) -> bool:
        return self._turns.gone and self._turns.engine is EngineState.PARKED and not self._asking and not self._telling

    def _go_on(self) -> None:
        now = guard.now()
        if not self._asking and (call := self._turns.call(now)) is not None:
            self._asking = True
            threading.Thread(target=self._ask, args=(call, now), daemon=True).start()
        if not self._telling and (act := self._turns.act(now)) is not None:
            self._telling = True
            threading.Thread(target=self._tell, args=(act,), daemon=True).start()

    def _check(self, *, leave: bool) -> None:
        """Tell `turns` what the engine needs."""
        now, turns, wish = guard.now(), self._turns, self._turns.wish
        guarded = self._permits.guarded()
        if not guarded and not wish.leave:
            say("waiting for the guard: start the engine with `stoker slice guard` on the same folder")
        wish.leave = leave or not guarded
        if turns.engine is EngineState.RUNNING and self._permits.replaced():
            self._note("replaced")
            turns.engine_is(EngineState.UNKNOWN, now)
        wish.reload = bool(self._reloads.asked())
        # Requests for a version come when it is loaded, so an engine without requests needs its turn to load it.
        loads = wish.reload or self._reloads.wants_turn()
        if self._load is None or self._load > 0 or self._idle_seconds is None or loads:
            self._busy = now
            wish.device, wish.idle = True, False
        else:
            wish.idle = now >= self._busy + self._idle_seconds
            wish.device = not wish.idle
        if turns.term is None and self._turn is not None:
            self._note("lost")

    # What the API is asked.

    def _ask(self, call: ReadLease | Write, sent: float) -> None:
        try:
            if isinstance(call, ReadLease):
                lease = self._leases.read(self._name)
            else:
                lease = self._leases.write(self._name, lease_of(call.record, self._lease))
            record = record_of(lease)
        except LeaseConflictError:
            self._events.put(self._refused)
        except NoAnswerError as error:
            text = str(error)
            self._events.put(lambda: self._unanswered(text))
        except RunError as error:
            # Rights that were there may come back: an API server that starts has none.
            if not self._written:
                self._failure = error
            text = error.message
            self._events.put(lambda: self._unanswered(text))
        else:
            wrote = isinstance(call, Write)
            self._events.put(lambda: self._answered(lease, record, sent if wrote else None))

    def _answered(self, lease: dict[str, Any], record: Any, sent: float | None) -> None:
        self._asking, self._lease = False, lease
        version, now = lease["metadata"]["resourceVersion"], guard.now()
        if sent is None:
            self._turns.saw(record, version, now)
        else:
            self._written = True
            self._turns.wrote(record, version, sent, now)
        if self._turns.term is not None:
            self._permits.extend(self._turns.until)
        self._report("")

    def _refused(self) -> None:
        self._asking = False
        self._turns.refused()

    def _unanswered(self, problem: str) -> None:
        self._asking = False
        self._turns.unanswered(guard.now())
        self._report(problem)

    def _report(self, problem: str) -> None:
        if problem and problem != self._problem:
            say(problem)
        elif self._problem and not problem:
            say("the API server answers")
        self._problem = problem

    # What the engine is told.

    def _tell(self, act: Use | Park | Reload) -> None:
        began = guard.now()
        try:
            if isinstance(act, Use):
                found = self._use(act)
            else:
                found = self._park() if isinstance(act, Park) else self._reload()
        except HookError as error:
            say(str(error))
            found = EngineState.UNKNOWN
        except RunError as error:
            self._failure, found = error, EngineState.UNKNOWN
        except OSError as error:
            self._failure = RunError(
                ExitCode.CONFIG, f"{error.filename} cannot be written ({error.strerror}): free space, or another folder"
            )
            found = EngineState.UNKNOWN
        seconds, reloaded = guard.now() - began, isinstance(act, Reload)
        self._events.put(lambda: self._told(found, seconds, reloaded=reloaded))

    def _use(self, use: Use) -> EngineState:
        self._permits.use(use.term, use.until)
        # The guard ends the engine in time only if it can read the permit before that runs out: this process may have
        # been stopped before it wrote.
        if guard.now() >= use.until:
            raise HookError(f"turn {use.term} was over before the engine was told")
        self._journal.note("use", term=use.term)
        self._hooks.use(lambda: self._turns.term == use.term and not self._turns.wish.leave)
        self._permits.runs()
        return EngineState.RUNNING

    def _park(self) -> EngineState:
        way = self._permits.way()
        if way is Fencing.ASK:
            self._permits.parking()
            try:
                if not self._reloads.settles():
                    raise HookError("an adapter is still being loaded: raise --hook-seconds if that takes longer")
                self._hooks.park()
            except HookError as error:
                say(f"{error}; the guard ends the engine")
                way = Fencing.END
        if way is Fencing.END and not self._permits.end(_END_SECONDS):
            raise HookError("the guard does not say that the engine has ended")
        self._permits.parked()
        self._journal.note("parked", way=way.name.lower())
        return EngineState.PARKED

    def _reload(self) -> EngineState:
        name = self._reloads.asked()
        if not name:  # the watcher has withdrawn it: the workers read something newer
            return EngineState.RUNNING
        began, failed = guard.now(), True
        try:
            self._permits.reloading()
            found = self._hooks.reload(name)
            self._permits.runs()
            self._reloads.answer(name, found)
            failed = False
        finally:
            self._journal.note("reloaded", seconds=round(guard.now() - began, 6), failed=failed)
        return EngineState.RUNNING

    def _told(self, engine: EngineState, seconds: float, *, reloaded: bool) -> None:
        self._telling = False
        self._turns.engine_is(engine, guard.now())
        if engine is EngineState.RUNNING and not reloaded and self._turns.term is not None:
            self._turn = (self._turns.term, guard.now())
            self._journal.note("running", term=self._turns.term, seconds=round(seconds, 6))
        elif engine is EngineState.PARKED and self._turn is not None:
            self._note("given", seconds=round(seconds, 6))

    def _note(self, event: str, **more: Any) -> None:
        """Write how a turn ended."""
        term, since = self._turn or (None, guard.now())
        if event != "replaced":
            self._turn = None
        self._journal.note(event, term=term, held=round(guard.now() - since, 6), **more)
        if event != "given" and term is not None:
            say(f"turn {term} is {event}" if event == "lost" else f"turn {term}: the engine has ended")

    def _watch_load(self, stop: threading.Event) -> None:
        while not stop.wait(_CHECK_SECONDS / 2):
            self._load = self._hooks.load()
