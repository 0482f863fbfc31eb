"""The most memory that this process has held, without the pages of files. Imported by scripts."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType


def anonymous() -> int:
    """Return the bytes that this process holds now, without the pages of files."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


class Peak:
    """Looks every few milliseconds, from its start to its end.

    Attributes:
        bytes: the most that was seen.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Peak:
        """Start to look."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Look a last time."""
        self._end.set()
        self._thread.join()
        self.bytes = max(self.bytes, anonymous())

    def _look(self) -> None:
        while not self._end.wait(0.005):
            self.bytes = max(self.bytes, anonymous())
