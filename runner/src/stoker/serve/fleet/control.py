"""Acts on a whole fleet: writes what is wanted, waits until every ready replica has it, else takes it back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stoker.contract.exits import RunError
from stoker.contract.words import say
from stoker.serve.fleet.desired import CallRefusedError, Desired, ReplicaStatus, Step, lacking
from stoker.serve.fleet.log import Log, TakenError
from stoker.serve.fleet.replicas import Replicas

_PAUSE_SECONDS = 0.05
# A replica that cannot is asked again for so long: a shared file system may lag.
_DOUBT_SECONDS = 5.0
# How long a change that is taken back is waited for.
_UNDO_SECONDS = 10.0
# A change whose author is gone is taken back so long after its time.
_MARGIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Call:
    """A call that changes every replica.

    Attributes:
        what: it does, for messages.
        step: what it makes of the desired state.
        anyway: it may be done while no replica is ready: it asks for less than before.
    """

    what: str
    step: Step
    anyway: bool = False


class Control:
    """Changes all replicas of a fleet, or none. Several threads and several processes may.

    Args:
        log: the desired states.
        replicas: the fleet.
        timeout: seconds that a change may take.
    """

    def __init__(self, log: Log, replicas: Replicas, timeout: float) -> None:
        self._log, self._replicas, self._timeout = log, replicas, timeout
        self._changing = threading.Lock()
        self._told = 0  # the newest generation that anybody is known to have seen
        self._tried = (0, 0.0)  # a generation of another process that is tried, and since when

    def change(self, call: Call) -> Desired:
        """Do a call, and return the state that every ready replica has then.

        Raises:
            CallRefusedError: it cannot be done. Every replica has the state before.
        """
        deadline = time.monotonic() + self._timeout
        if not self._changing.acquire(timeout=self._timeout):
            raise CallRefusedError(503, "another call takes too long: try again")
        try:
            anybody = self._survey()
            while True:
                now = self._settled(deadline)
                wanted = call.step(now)
                if not anybody and not call.anyway:
                    raise CallRefusedError(503, "no replica is ready: try again when one is")
                if wanted.same(now):
                    return self._checked(now, call, deadline)
                tried = wanted.tried(now.generation + 1)
                try:
                    self._log.append(tried)
                except TakenError:
                    self._told = tried.generation
                    continue
                return self._done(now, tried, call, deadline)
        except RunError as error:
            raise CallRefusedError(500, error.message) from error
        except (OSError, ValueError) as error:
            raise CallRefusedError(500, f"the state in {self._log.folder} cannot be read: {error}") from error
        finally:
            self._changing.release()

    def tell(self) -> None:
        """Tell replicas that do not know it of the newest state, and take back a change whose author is gone.

        Raises:
            OSError: the state cannot be read.
            ValueError: it has another form.
            RunError: it cannot be written (78).
        """
        newest = self._take_back()
        seen = self._replicas.ask(self._replicas.known())
        late = [
            name
            for name, answer in seen.items()
            if isinstance(answer, ReplicaStatus) and answer.held is not None and answer.held.known < newest.generation
        ]
        self._replicas.ask(late, newest.generation)

    def shown(self) -> dict[str, Any]:
        """Return the state and what each replica has of it, for a person to read.

        Raises:
            CallRefusedError: it cannot be read.
        """
        try:
            newest, _ = self._log.newest()
        except (OSError, ValueError) as error:
            raise CallRefusedError(500, f"the state in {self._log.folder} cannot be read: {error}") from error
        seen, listed = self._replicas.ask(self._replicas.known()), self._replicas.ready()
        return {
            "generation": newest.generation,
            "kept": newest.kept,
            "paused": newest.paused,
            "adapters": dict(newest.adapters),
            "weights": newest.weights,
            "replicas": {name: _shown(answer, name in listed) for name, answer in sorted(seen.items())},
        }

    def readable(self) -> str:
        """Return "ok" if the state can be read.

        Raises:
            CallRefusedError: it cannot.
        """
        self.paused()
        return "ok\n"

    def healthy(self) -> str:
        """Return an empty answer, as vLLM does, if a replica may be asked.

        Raises:
            CallRefusedError: none is listed.
        """
        if not self._replicas.ready():
            raise CallRefusedError(503, "no replica is ready")
        return ""

    def paused(self) -> bool:
        """Return whether replicas are paused.

        Raises:
            CallRefusedError: the state cannot be read.
        """
        try:
            return self._log.newest()[0].paused
        except (OSError, ValueError) as error:
            raise CallRefusedError(500, f"the state in {self._log.folder} cannot be read: {error}") from error

    def _survey(self) -> bool:
        """Return whether a replica is ready, and learn what all have seen: our own view of the folder may be old."""
        listed = self._replicas.ready()
        seen = [one for one in self._replicas.ask(self._replicas.known()).values() if isinstance(one, ReplicaStatus)]
        self._told = max([self._told, *(one.held.known for one in seen if one.held)])
        return bool(listed) or any(one.ready for one in seen)

    def _settled(self, deadline: float) -> Desired:
        """Return the newest state once it is kept: another process may be trying one."""
        while not (newest := self._take_back()).kept:
            if time.monotonic() > deadline:
                raise CallRefusedError(503, "a call to another process of the fleet takes too long: try again")
            time.sleep(_PAUSE_SECONDS)
        return newest

    def _take_back(self) -> Desired:
        """Return the newest state; take it back if it has been tried for longer than its author would."""
        newest, kept = self._log.newest(self._told)
        now = time.monotonic()
        if newest.kept or newest.generation != self._tried[0]:
            self._tried = (newest.generation, now)
        elif now - self._tried[1] > self._timeout + _UNDO_SECONDS + _MARGIN_SECONDS:
            say(f"generation {newest.generation} was left undecided: undoing it")
            newest = self._keep(kept, newest.generation) or newest
        return newest

    def _keep(self, state: Desired, after: int) -> Desired | None:
        """Write the state to keep after a generation; None if another process has written first."""
        kept = state.kept_as(after + 1)
        try:
            self._log.append(kept)
        except TakenError:
            return None
        return kept

    def _done(self, before: Desired, tried: Desired, call: Call, deadline: float) -> Desired:
        """Wait until every ready replica has a state that is tried; then keep it, else take it back."""
        began = time.monotonic()
        missing = self._await(tried.generation, deadline)
        if not missing:
            kept = self._keep(tried, tried.generation)
            if kept is None:
                raise CallRefusedError(502, f"another process undid it, because this one was too slow to {call.what}")
            say(f"{call.what}: every ready replica has it after {time.monotonic() - began:.3f} s")
            return kept
        undone = self._keep(before, tried.generation)
        left = self._await(undone.generation, time.monotonic() + _UNDO_SECONDS, undo=True) if undone else {}
        say(f"{call.what}: undone; {missing}")
        later = f"; still rolling back, or not answering: {', '.join(left)}" if left else ""
        raise CallRefusedError(502, f"not every replica could {call.what}; all keep the state before{later}", missing)

    def _checked(self, now: Desired, call: Call, deadline: float) -> Desired:
        """Wait until every ready replica has what is wanted already."""
        if missing := self._await(now.generation, deadline):
            raise CallRefusedError(502, f"not every replica could {call.what}; it stays wanted", missing)
        return now

    def _await(self, generation: int, deadline: float, *, undo: bool = False) -> dict[str, str]:
        """Wait until every ready replica has a generation; return why others do not, by name.

        Args:
            generation: to have.
            deadline: when the wait ends.
            undo: it takes something back: one that does not answer reads it by itself, and one that cannot is waited
                for.
        """
        seen: dict[str, ReplicaStatus | str] = {}
        unable: dict[str, float] = {}
        while True:
            names = self._replicas.known()
            seen = {name: answer for name, answer in seen.items() if name in names}
            seen |= self._replicas.ask([name for name in names if not _has(seen.get(name), generation)], generation)
            missing = lacking(generation, seen, self._replicas.ready())
            awaited = [name for name in missing if not undo or isinstance(seen.get(name), ReplicaStatus)]
            now = time.monotonic()
            unable = {name: unable.get(name, now) for name in missing if _cannot(seen.get(name), generation)}
            doubted = not undo and any(now - since >= _DOUBT_SECONDS for since in unable.values())
            if not awaited or now >= deadline or doubted:
                return missing
            time.sleep(_PAUSE_SECONDS)


def _has(answer: ReplicaStatus | str | None, generation: int) -> bool:
    return isinstance(answer, ReplicaStatus) and answer.held is not None and answer.held.generation >= generation


def _cannot(answer: ReplicaStatus | str | None, generation: int) -> bool:
    """Return whether a replica has tried a generation, and could not."""
    return (
        isinstance(answer, ReplicaStatus)
        and answer.held is not None
        and answer.held.failed
        and answer.held.known >= generation
    )


def _shown(answer: ReplicaStatus | str, listed: bool) -> dict[str, Any]:
    if isinstance(answer, str):
        return {"listed": listed, "ready": False, "problem": answer}
    held = answer.held
    return {
        "listed": listed,
        "ready": answer.ready,
        "generation": held.generation if held else 0,
        "problem": held.problem if held else "it belongs to no fleet",
    }


def reminding(control: Control, interval: float, stop: threading.Event) -> Callable[[], None]:
    """Return what tells replicas of the newest state until the stop, for a thread of its own."""

    def run() -> None:
        said = ""
        while not stop.wait(interval):
            try:
                control.tell()
                problem = ""
            except (OSError, ValueError, RunError) as error:
                problem = f"the fleet's state cannot be read or written: {error}"
            if problem and problem != said:
                say(problem)
            said = problem

    return run
