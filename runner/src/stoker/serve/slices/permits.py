"""Hands permits to the guard, and says by which way an engine stops for sure."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path

from stoker.contract.exits import RunError
from stoker.serve.slices import guard
from stoker.serve.slices.guard import (
    ENDED,
    ENGINE,
    IDLE,
    LOADING,
    PARKED,
    PARKING,
    REFUSED,
    RUNNING,
    SILENT_SECONDS,
    STARTING,
    STOP,
    Permit,
    Sight,
)

_ASK_SECONDS = 0.02


class Fencing(Enum):
    """How an engine stops using the device for sure."""

    NOTHING = "it does not use the device"
    ASK = "it parks when it is asked to"
    END = "the guard ends it"


def way_to_park(permit: Permit | None, sight: Sight | None, started: float) -> Fencing:
    """Return how an engine stops for sure.

    Args:
        permit: what it has.
        sight: what the guard sees.
        started: when the engine started that was told to go on.
    """
    if permit is not None and permit.state == PARKED:
        return Fencing.NOTHING
    asked = permit is not None and permit.state == RUNNING and sight is not None and sight.state == ENGINE
    # What may still be told to go on, or starts anew, is not to be trusted with an answer.
    return Fencing.ASK if asked and sight is not None and sight.since == started else Fencing.END


@contextmanager
def telling_the_guard(folder: Path, seconds: float, stop: threading.Event) -> Iterator[None]:
    """Let the guard end, and the pod with it, if the body fails for good before the first permit.

    Args:
        folder: shared with the guard.
        seconds: how long to wait for a guard to read so.
        stop: ends the wait.
    """
    try:
        yield
    except RunError as error:
        if error.code.is_final and folder.is_dir():
            Permits(folder).refused(seconds, stop)
        raise


class Permits:
    """The permits of one engine. Several threads may use it.

    Args:
        folder: shared with the guard.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._permit = guard.read_permit(folder)
        self._started = self._sight().since

    def use(self, term: int, until: float) -> None:
        """Let the guard start an engine, and the engine use the device."""
        self._give(Permit(STARTING, until, term))

    def runs(self) -> None:
        """Note that nothing is under way any more that lets the engine run."""
        with self._lock:
            self._started = self._sight().since
            if self._permit is not None and self._permit.allows:
                self._write(replace(self._permit, state=RUNNING))

    def reloading(self) -> None:
        """Let no other engine start until this one has loaded weights, for which it is paused, and goes on."""
        with self._lock:
            if self._permit is not None and self._permit.state == RUNNING:
                self._write(replace(self._permit, state=LOADING))

    def extend(self, until: float) -> None:
        """Put off the end of a permit."""
        with self._lock:
            if self._permit is not None and self._permit.allows and until > self._permit.until:
                self._write(replace(self._permit, until=until))

    def parking(self) -> None:
        """Let no other engine start until it is certain that this one has parked."""
        with self._lock:
            if self._permit is not None and self._permit.allows:
                self._write(replace(self._permit, state=PARKING))

    def parked(self) -> None:
        """Note that the engine does not use the device."""
        self._give(Permit(PARKED))

    def refused(self, seconds: float, stop: threading.Event) -> None:
        """Note that no permit will come, if none has come yet, and wait until the guard has read so.

        Args:
            seconds: how long to wait.
            stop: ends the wait.
        """
        with self._lock:
            if self._permit is None:
                self._write(Permit(REFUSED))
            permit = self._permit
        if permit is None or permit.state != REFUSED:
            return
        deadline = time.monotonic() + seconds
        while self._sight().order < permit.order and time.monotonic() < deadline:
            if stop.wait(_ASK_SECONDS):
                return

    def way(self) -> Fencing:
        """Return how the engine stops for sure."""
        return way_to_park(self._permit, guard.read_sight(self._folder), self._started)

    def end(self, seconds: float) -> bool:
        """Have the guard end the engine, and return whether it did, or is gone with it."""
        order = self._give(Permit(STOP))
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            sight = self._sight()
            ended = sight.state == ENDED or (sight.state == IDLE and sight.order >= order)
            if ended or guard.nobody_lives(self._folder):
                return True
            time.sleep(_ASK_SECONDS)
        return False

    def guarded(self) -> bool:
        """Return whether the guard is there."""
        sight = self._sight()
        return sight.state != ENDED and guard.now() < sight.beat + SILENT_SECONDS

    def replaced(self) -> bool:
        """Return whether the engine is not the one any more that was told to go on."""
        sight = self._sight()
        return sight.state != ENGINE or sight.since != self._started

    def _sight(self) -> Sight:
        return guard.read_sight(self._folder) or Sight()

    def _give(self, permit: Permit) -> int:
        with self._lock:
            return self._write(permit)

    def _write(self, permit: Permit) -> int:
        order = self._permit.order + 1 if self._permit else 0
        self._permit = replace(permit, order=order)
        guard.write(guard.permit_path(self._folder), self._permit)
        return order
