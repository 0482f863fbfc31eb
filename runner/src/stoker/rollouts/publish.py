"""Publishes versions of the policy beside the training: writes, spreads over the samplers, and removes old ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import say
from stoker.rollouts.fleet import Fleet
from stoker.serve.adapters import live

_RETRY_SECONDS = 0.5
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
    """

    version: int
    write_seconds: float
    spread_seconds: float
    samplers: tuple[str, ...]


class Publisher:
    """Publishes versions in a thread of its own.

    Args:
        folder: the samplers' folder of published versions.
        name: the name of the run's versions, as `stoker.serve.adapters.live.claim` gave it.
        fleet: the samplers.
        usable: told each version that every ready sampler serves.
        in_use: returns the versions that requests may still name.
        base_model: `name_or_path` and `revision` of the base model, for the manifests.
        seconds: how long one sampler may hold up the others.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        fleet: Fleet,
        usable: Callable[[int], None],
        in_use: Callable[[], frozenset[int]],
        *,
        base_model: Mapping[str, str | None],
        seconds: float = 5.0,
    ) -> None:
        self._folder, self._name, self._fleet, self._base_model = folder, name, fleet, base_model
        self._usable, self._in_use, self._seconds = usable, in_use, seconds
        self._changed = threading.Condition()
        self._next: tuple[int, Callable[[Path], None]] | None = None
        self._highest = 0
        self._failure: RunError | None = None
        self._closing = False
        self._there: set[int] = set()  # versions whose folders exist
        self._told: list[tuple[float, int]] = []  # when `usable` was told the newest ones
        self._spread: list[Published] = []
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    def publish(self, version: int, write: Callable[[Path], None]) -> None:
        """Publish a version, and return at once.

        A version that waits to be written while a newer one comes is left out.

        Args:
            version: its number, larger than those before.
            write: writes the adapter, as PEFT does, into the folder that it is given. The thread of the publisher calls
                it, again in another folder if it failed.

        Raises:
            ValueError: the number is not larger.
        """
        with self._changed:
            if version <= self._highest:
                raise ValueError(f"version {version} comes after {self._highest}: a name is never used twice")
            self._highest = version
            self._next = (version, write)
            self._changed.notify()

    def failed(self) -> RunError | None:
        """Return why no version is published any more; None if all is well."""
        return self._failure

    def published(self) -> tuple[Published, ...]:
        """Return the versions that have become usable since the last call."""
        with self._changed:
            found, self._spread = tuple(self._spread), []
        return found

    def close(self) -> None:
        """End the thread and remove the run's versions. What is half done is given up."""
        with self._changed:
            self._closing, self._next = True, None
            self._changed.notify()
        self._thread.join(_CLOSE_SECONDS)
        if not self._thread.is_alive():  # else the disk does not answer
            with suppress(OSError):
                live.clear(self._folder, self._name)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._next is None and not self._closing:
                    self._changed.wait(_TIDY_SECONDS if len(self._there) > 1 else None)
                if self._closing:
                    return
                job, self._next = self._next, None
            try:
                if job is not None and self._failure is None:
                    self._publish(*job)
                self._tidy()
            except RunError as error:
                self._failure = error
            except Exception as error:  # noqa: BLE001 - from `write`, or from those who are told
                self._failure = RunError(
                    ExitCode.CRASHED, f"{self._name} could not be published: {type(error).__name__}: {error}"
                )
                self._failure.__cause__ = error

    def _publish(self, version: int, write: Callable[[Path], None]) -> None:
        began = time.monotonic()
        try:
            live.publish(self._folder, self._name, version, write, self._base_model)
        except RunError as error:
            # Old versions may leave room, and a network file system may come back.
            if error.code is not ExitCode.CONFIG:
                raise
            say(f"version {version} could not be written, and is written again: {error}")
            self._tidy()
            time.sleep(_RETRY_SECONDS)
            live.publish(self._folder, self._name, version, write, self._base_model)
        self._there.add(version)
        written = time.monotonic()
        samplers = self._fleet.spread(version, self._seconds, lambda: self._closing)
        if not samplers:
            return
        spread = time.monotonic()
        with self._changed:
            self._spread.append(Published(version, written - began, spread - written, samplers))
        self._usable(version)
        self._told.append((time.monotonic(), version))

    def _tidy(self) -> None:
        """Remove versions that no request names and that a newer one has replaced a moment ago.

        A group that was begun in that very moment may name the one before.
        """
        past = time.monotonic() - _TIDY_SECONDS
        settled = max((version for when, version in self._told if when <= past), default=0)
        self._told = [(when, version) for when, version in self._told if version >= settled]
        for version in sorted(self._there - self._in_use()):
            if version < settled:
                try:
                    live.retract(self._folder, self._name, version)
                except RunError as error:
                    say(f"{self._name}:{version} could not be removed, and is tried again: {error}")
                    continue
                self._there.discard(version)
