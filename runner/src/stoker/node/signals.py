"""Remembers that this process was asked to stop, and when. Imports next to nothing, so that it can come first."""

from __future__ import annotations

import math
import signal
import time
from functools import cache
from types import FrameType

from stoker.contract.exits import ExitCode, RunError

# Kept back from the grace period to write down how the run ended.
_GRACE_MARGIN_SECONDS = 5.0


class Signals:
    """Remembers that this process was asked to stop, and when."""

    def __init__(self) -> None:
        self.stopped_at: float | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        # Nothing is printed here: the signal may have interrupted a print.
        if self.stopped_at is None:
            self.stopped_at = time.monotonic()

    def time_left(self, grace_seconds: int) -> float:
        """Return the seconds left to write down how the run ended; endless if no stop was asked for."""
        if self.stopped_at is None:
            return math.inf
        return self.stopped_at + grace_seconds - _GRACE_MARGIN_SECONDS - time.monotonic()

    def refuse_if_stopped(self) -> None:
        """Raise if a stop was asked for.

        Raises:
            RunError: it was (75).
        """
        if self.stopped_at is not None:
            raise RunError(ExitCode.STOPPED, "stopped before training began, nothing was lost")


@cache
def listen() -> Signals:
    """Take over SIGTERM and SIGINT for good, and return the one record of them. Later calls return the same."""
    return Signals()
