"""Publishes versions of the policy beside the training: writes, spreads over the samplers, and removes old ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import say
from stoker.rollouts.fleet import Fleet
from stoker.rollouts.stores import Store
from stoker.serve.adapters.versions import OutageError

Job = TypeVar("Job")
T = TypeVar("T")
# Done in the thread of the publisher once a version can be used, and before another is offered; it ends when what it is
# given returns True.
After = Callable[[Callable[[], bool]], None]

# Seconds between the tries to write a version where the file system may come back: ten minutes in all. The bound on
# staleness makes the trainer wait meanwhile.
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, *[30.0] * 19)
_TIDY_SECONDS = 0.25
_CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Published:
    """A version that requests may name.

    Attributes:
        version: its number.
        write_seconds: to write it, until the samplers could see it.
        spread_seconds: from then until every ready sampler served it.
        samplers: names of those.
        numbers: about its files, by name.
    """

    version: int
    write_seconds: float
    spread_seconds: float
    samplers: tuple[str, ...]
    numbers: Mapping[str, float] = field(default_factory=dict)


class Publisher(Generic[Job]):
    """Publishes versions in a thread of its own.

    Args:
        store: where the samplers find the versions.
        fleet: the samplers.
        usable: told each version that every ready sampler serves.
        in_use: returns the versions that requests may still name.
        seconds: how long one sampler may hold up the others.
    """

    def __init__(
        self,
        store: Store[Job],
        fleet: Fleet,
        usable: Callable[[int], None],
        in_use: Callable[[], frozenset[int]],
        *,
        seconds: float = 5.0,
    ) -> None:
        self._store, self._fleet = store, fleet
        self._usable, self._in_use, self._seconds = usable, in_use, seconds
        self._changed = threading.Condition()
        self._waiting: list[tuple[int, Job, bool, After | None]] = []
        self._highest = fleet.newest  # of adapters version 0 is there without having been published
        self._failure: RunError | None = None
        self._closing = False
        self._told: list[tuple[float, int]] = []  # when `usable` was told the newest ones
        self._spread_to: list[Published] = []
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    def make_room(self) -> None:
        """Let go of versions that wait to be written, unless they are needed, because a newer one is about to be made.

        Each of them may be all weights of a model in memory.
        """
        with self._changed:
            self._waiting = [one for one in self._waiting if one[2]]

    def publish(self, version: int, job: Job, *, needed: bool = False, after: After | None = None) -> None:
        """Publish a version, and return at once.

        A version that waits to be written while a newer one comes is left out, unless it is needed.

        Args:
            version: its number, larger than those before.
            job: what the store writes, in the thread of the publisher; again if it failed.
            needed: it must not be left out.
            after: what is done with it before another version is offered.

        Raises:
            ValueError: the number is not larger.
        """
        with self._changed:
            if version <= self._highest:
                raise ValueError(f"version {version} comes after {self._highest}: a name is never used twice")
            self._highest = version
            self.make_room()
            self._waiting.append((version, job, needed, after))
            self._changed.notify()

    def failed(self) -> RunError | None:
        """Return why no version is published any more; None if all is well."""
        return self._failure

    def published(self) -> tuple[Published, ...]:
        """Return the versions that have become usable since the last call."""
        with self._changed:
            found, self._spread_to = tuple(self._spread_to), []
        return found

    def close(self) -> None:
        """End the thread, which then removes the run's versions. What is half done is given up.

        A write that takes long is not waited for: what remains to be done of the run is time for it to end.
        """
        with self._changed:
            self._closing, self._waiting = True, []
            self._changed.notify()
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            say(
                f"a version of {self._fleet.name} is still being written: if that outlasts the run, delete what is "
                "left of it where the samplers read versions"
            )

    def _run(self) -> None:
        self._work()
        with suppress(OSError):  # the disk may not answer
            self._store.clear()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting and not self._closing:
                    self._changed.wait(_TIDY_SECONDS if self._store.untidy else None)
                if self._closing:
                    return
                job = self._waiting.pop(0) if self._waiting else None
            try:
                if job is not None and self._failure is None:
                    version, what, _, after = job
                    if self._publish(version, what) and after is not None:
                        after(lambda: self._closing)
                self._tidy()
            except RunError as error:
                self._failure = error
            except Exception as error:  # noqa: BLE001 - from `write`, or from those who are told
                self._failure = RunError(
                    ExitCode.CRASHED, f"{self._fleet.name} could not be published: {type(error).__name__}: {error}"
                )
                self._failure.__cause__ = error

    def _publish(self, version: int, job: Job) -> bool:
        """Write a version and spread it; return whether it can be used."""
        began = time.monotonic()
        self._fleet.offer(version)
        numbers = self._persistently(version, lambda: self._store.write(version, job))
        written = time.monotonic()
        samplers = self._spread(version)
        if not samplers:
            return False
        spread = time.monotonic()
        with self._changed:
            self._spread_to.append(Published(version, written - began, spread - written, samplers, numbers))
        self._usable(version)
        self._told.append((time.monotonic(), version))
        return True

    def _spread(self, version: int) -> tuple[str, ...]:
        """Wait until the samplers serve a version, and mend it if it is damaged for some of them."""
        try:
            samplers = self._fleet.spread(version, self._seconds, lambda: self._closing)
        except RunError as error:
            if error.code is not ExitCode.CONFIG or not self._mend(version):
                raise
            say(f"version {version} is written again, as a whole: {error}")
            return self._fleet.spread(version, self._seconds, lambda: self._closing)
        if (refusals := self._fleet.refusals(version)) and self._mend(version):
            listed = "; ".join(f"sampler {name}: {why}" for name, why in refusals.items())
            say(f"version {version} is written again, as a whole: {listed}")
            self._fleet.remind(version)
        return samplers

    def _mend(self, version: int) -> bool:
        return self._persistently(version, lambda: self._store.mend(version))

    def _persistently(self, version: int, write: Callable[[], T]) -> T:
        """Write something of a version, and write it again if it fails and that may help."""
        for tried, pause in enumerate(_PAUSES):
            try:
                return write()
            except RunError as error:
                # Old versions may leave room, once; a network file system may come back at any time.
                hopeful = isinstance(error, OutageError) or (error.code is ExitCode.CONFIG and not tried)
                if self._closing or not hopeful:
                    raise
                say(f"version {version} could not be written, and is written again: {error}")
            self._tidy()
            with self._changed:
                self._changed.wait_for(lambda: self._closing, pause)
        return write()

    def _tidy(self) -> None:
        """Remove versions that nobody needs and that a newer one has replaced a moment ago.

        A group that was begun in that very moment may name the one before.
        """
        past = time.monotonic() - _TIDY_SECONDS
        settled = max((version for when, version in self._told if when <= past), default=0)
        self._told = [(when, version) for when, version in self._told if version >= settled]
        self._store.tidy(settled, self._in_use())
