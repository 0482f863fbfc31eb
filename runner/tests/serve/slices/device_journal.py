"""What an engine's side writes about its use of a device: a line at the begin of each use, and one at its end.

A line is `shared` if another engine had the device then: a lock beside the folder of the journal.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class DeviceJournal:
    """The journal of one engine.

    Args:
        path: the journal.
    """

    def __init__(self, path: Path) -> None:
        self._stream, self._device = path.open("a", buffering=1), _Device(path.parents[1] / "device")

    @contextmanager
    def use(self, **more: Any) -> Iterator[dict[str, Any]]:
        """Use the device.

        Args:
            more: what else the lines say.

        Yields:
            the line of the end, which may still be changed.
        """
        with self._device.used() as shared:
            begin = time.clock_gettime(time.CLOCK_BOOTTIME)
            line = {"pid": os.getpid(), "begin": begin, "shared": shared, **more}
            # A line of its own at the begin: an engine that is killed ends no request.
            self._stream.write(json.dumps(line) + "\n")
            yield line
            self._stream.write(json.dumps({**line, "end": time.clock_gettime(time.CLOCK_BOOTTIME)}) + "\n")


class _Device:
    """What one engine may use at a time. The kernel takes it from an engine that is gone, and from no other."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        self._counting = threading.Lock()
        self._users, self._shared = 0, False

    @contextmanager
    def used(self) -> Iterator[bool]:
        """Use the device, and yield whether another engine does too."""
        with self._counting:
            if not self._users:
                self._shared = not self._is_free()
            self._users += 1
        try:
            yield self._shared
        finally:
            with self._counting:
                self._users -= 1
                if not self._users:
                    fcntl.flock(self._file, fcntl.LOCK_UN)

    def _is_free(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
