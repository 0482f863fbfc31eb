"""Records a stop request to this process. Imports almost nothing, so that it can run first."""

from __future__ import annotations

import math
import signal
import time
from functools import cache
from types import FrameType

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.grace import RECORD_SECONDS


class Signals:
    """Records when this process was asked to stop."""

    def __init__(self) -> None:
        self.stopped_at: float | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        # Do not print here: the signal may have interrupted a print.
        if self.stopped_at is None:
            self.stopped_at = time.monotonic()

    def time_left(self, grace_seconds: int) -> float:
        """Return the seconds left to record how the run ended; infinite without a stop request."""
        if self.stopped_at is None:
            return math.inf
        return self.stopped_at + grace_seconds - RECORD_SECONDS - time.monotonic()

    def refuse_if_stopped(self) -> None:
        """Raise if this process was asked to stop.

        Raises:
            RunError: it was asked to stop (75).
        """
        if self.stopped_at is not None:
            raise RunError(ExitCode.STOPPED, "stopped before training began; nothing was lost")


@cache
def listen() -> Signals:
    """Handle SIGTERM and SIGINT from now on, and return their only record. Later calls return the same record."""
    return Signals()
