"""Keeps one replica's weights at the newest version of its run: looks, reads, swaps, and reports.

Where engines take turns at a device it reads alone, and `stoker slice run` swaps: see `stoker.serve.slices.reloads`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.contract.words import say
from stoker.serve.adapters.state import ReplicaState
from stoker.serve.slices.reloads import Reloads
from stoker.serve.vllm import Server, ServerError
from stoker.serve.weights import files, workers
from stoker.serve.weights.files import WeightsFile

# Files that could not be taken are tried again: a shared file system may lag.
_RETRY_SECONDS = 5.0
# How long a look waits for weights to be loaded in the engine's turn, so that whoever asked for it learns of that soon.
_RELOAD_SECONDS = 1.0


class WeightsWatch:
    """One replica's weights. Several threads may look.

    Args:
        folder: of published versions.
        model_name: what requests call the model.
        server: the replica's vLLM.
        described: what a trainer has to know of the replica.
        clock: seconds since the epoch.
        reloads: by which weights are loaded where the engine takes turns at its device; None where it does not.

    Attributes:
        state: what the last look found.
        unfinished: always False: a look leaves nothing to do.
    """

    unfinished = False

    def __init__(
        self,
        folder: Path,
        model_name: str,
        server: Server,
        described: Mapping[str, str | int | None],
        clock: Callable[[], float] = time.time,
        reloads: Reloads | None = None,
    ) -> None:
        self._folder, self._model_name, self._server, self._clock = folder, model_name, server, clock
        self._reloads = reloads
        self._looking = threading.Lock()
        self._run = ""
        self._bad: dict[str, tuple[float, str]] = {}  # when a file could not be taken, and why
        self.state = ReplicaState(server={**described, "weights": 1})

    def look(self) -> ReplicaState:
        """Take the newest version, and return what there is then."""
        return self.look_at_once()

    def look_at_once(self, told: Iterable[str] = (), generation: int = 0) -> ReplicaState:
        """Take the newest version, and return what there is then.

        Args:
            told: names of versions that were published just now; their run is the one to follow.
            generation: of a fleet, to which no such replica belongs.
        """
        del generation
        told = [*told]
        with self._looking:
            for name in told:
                self._follow(name.rpartition(":")[0])
            try:
                self.state = self._look(retry=bool(told))
            except ServerError as error:
                if self.state.up or str(error) != self.state.problems.get("vllm"):
                    say(f"the model does not answer: {error}")
                self.state = replace(
                    self.state, up=False, settled=False, time=self._clock(), loaded={}, problems={"vllm": str(error)}
                )
            return self.state

    def sees(self, name: str) -> bool:
        """Return whether the folder of versions has one for a run, as far as this replica sees it."""
        try:
            return (self._folder / name).is_dir()
        except OSError:  # the file system does not answer
            return False

    def _follow(self, run: str) -> None:
        if run and run != self._run and (self._folder / run).is_dir():
            self._run, self._bad = run, {}
            say(f"following the weights of {run}")

    def _look(self, *, retry: bool) -> ReplicaState:
        now = self._clock()
        if not self.state.up:
            if self._reloads is None:
                self._resume()  # a watcher that ended in the middle has left it paused
            self._server.answers(self._model_name)
        held = workers.held(self._server)
        problems: dict[str, str] = {}
        found: Sequence[WeightsFile] = ()
        try:
            found = files.read(self._folder / self._run) if self._run else ()
            if not found:  # nobody said what to follow yet, or that run has ended
                self._follow(files.newest_run(self._folder))
                found = files.read(self._folder / self._run) if self._run else ()
        except OSError as error:
            problems[str(self._folder)] = f"it cannot be read: {error}"
        there = {file.path.name for file in found}
        self._bad = {
            name: (when, why)
            for name, (when, why) in self._bad.items()
            if name in there and not retry and now - when < _RETRY_SECONDS
        }
        while wanted := files.route(found, self._number(held), self._bad):
            before = (held, {*self._bad})
            held = self._take(wanted, held, now)
            if (held, {*self._bad}) == before:
                break
        newest = max((file.version for file in found), default=None)
        behind = newest is not None and self._number(held) != newest
        name = f"{self._run}:{newest}"
        if behind and self._bad:
            problems[name] = "; ".join(f"{file}: {why}" for file, (_, why) in sorted(self._bad.items()))
        return ReplicaState(
            server=self.state.server,
            up=True,
            settled=self.state.settled or not behind,
            time=now,
            loaded={held: str(self._folder / self._run)} if held else {},
            missing=(name,) if behind else (),
            problems=problems,
        )

    def _resume(self) -> None:
        try:
            self._server.resume()
        except ServerError as error:
            if error.status != 404:
                raise
            raise ServerError("it has no path to pause: start it with VLLM_SERVER_DEV_MODE=1", 404) from error

    def _number(self, name: str) -> int | None:
        """Return the number of a version of the run that is followed."""
        run, _, number = name.rpartition(":")
        return int(number) if run and run == self._run else None

    def _take(self, wanted: Sequence[WeightsFile], held: str, now: float) -> str:
        """Have the workers read files beside their work, then load them; return the version that they have then."""
        if self._reloads is not None:
            return self._take_in_turn(self._reloads, wanted, held, now)
        staged = self._stage(wanted)
        self._note_staged(staged, now)
        name = workers.agreed(staged)
        if not name:
            return held
        began = time.monotonic()
        swapped = workers.swapped(self._server, name)
        self._note_swapped(swapped, wanted, now)
        held = workers.agreed(swapped)
        if held == name:
            say(f"{_served(name, wanted)}; generation paused for {time.monotonic() - began:.3f} s")
        return held

    def _take_in_turn(self, reloads: Reloads, wanted: Sequence[WeightsFile], held: str, now: float) -> str:
        """Do the same where the engine takes turns: ask for what was read to be loaded, now or in its next turn."""
        name = f"{self._run}:{wanted[-1].version}"
        answers = reloads.answers(name)
        if answers is None:
            staged = workers.staged(self._server)
            if workers.agreed(staged) != name:
                reloads.withdraw()
                staged = self._stage(wanted)
                if (has := workers.held(self._server)) != held:  # what was asked for before was loaded meanwhile
                    return has
                self._note_staged(staged, now)
                if workers.agreed(staged) != name:
                    return held
            try:
                answers = reloads.wait(name, _RELOAD_SECONDS)
            except OSError as error:
                self._note(wanted[-1].path.name, f"{error.filename} cannot be written: {error.strerror}", now)
        if answers is None:
            return held
        self._note_swapped(answers, wanted, now)
        held = workers.held(self._server)  # which may be another engine by now
        if held == name:
            say(_served(name, wanted))
        return held

    def _stage(self, wanted: Sequence[WeightsFile]) -> list[dict[str, Any]]:
        self._server.workers("stoker_stage", folders=[str(file.path) for file in wanted])
        return workers.staged(self._server)

    def _note_staged(self, staged: Iterable[Mapping[str, Any]], now: float) -> None:
        for one in staged:
            if "problem" in one:
                self._note(str(one["file"]), str(one["problem"]), now)

    def _note_swapped(self, swapped: Iterable[Mapping[str, Any]], wanted: Sequence[WeightsFile], now: float) -> None:
        for one in swapped:
            if "problem" in one:
                self._note(wanted[-1].path.name, str(one["problem"]), now)

    def _note(self, file: str, problem: str, now: float) -> None:
        if self._bad.get(file, (0.0, ""))[1] != problem:
            say(f"{self._run}/{file}: {problem}")
        self._bad[file] = (now, problem)


def _served(name: str, wanted: Sequence[WeightsFile]) -> str:
    return f"{name} is served, from {', '.join(file.path.name for file in wanted)}"
