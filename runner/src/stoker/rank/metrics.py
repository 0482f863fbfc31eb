"""Writes the metrics of a run's steps into its output folder; rank 0 does so, whatever the framework."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stoker.contract.metrics import METRICS, plain
from stoker.contract.words import say

_STEP = "step"


class MetricsFile:
    """One JSON object per step, in the order of the steps.

    A file that cannot be written costs a run its curves, and nothing else.

    Args:
        folder: the output folder.
        step: the step that this attempt begins at; what an earlier attempt wrote of later steps is dropped.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self._path = folder / METRICS
        # The last line: its step, its numbers, and where it begins and ends.
        self._step = -1
        self._numbers: dict[str, Any] = {}
        self._begin = self._end = 0
        self._complained = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._go_on_from(step)
        except OSError as error:
            self._complain(error)

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add metrics of a step; numbers that JSON does not know become null.

        Args:
            step: steps completed. Metrics of the newest step join its line, and steps before it are left out.
            metrics: name → number or list of numbers; what the step's line has already stays.
        """
        if step < self._step:
            return
        if step > self._step:
            self._step, self._numbers, self._begin = step, {}, self._end
        added = {name: plain(value) for name, value in metrics.items() if name != _STEP}
        self._numbers = {**added, **self._numbers}
        line = json.dumps({_STEP: step, **dict(sorted(self._numbers.items()))}) + "\n"
        try:
            self._begin, self._end = _put(self._path, self._begin, line.encode())
        except OSError as error:
            # The next line begins where this one should have, so that no half of it stays.
            self._end = self._begin
            self._complain(error)

    def _go_on_from(self, step: int) -> None:
        draft = self._path.with_name(f".{METRICS}")
        with draft.open("wb") as stream:
            # A run that begins anew has no earlier steps.
            for number, numbers, line in _lines(self._path) if step else ():
                if self._step < number <= step:
                    self._step, self._numbers, self._begin = number, numbers, stream.tell()
                    stream.write(line)
            self._end = stream.tell()
        draft.replace(self._path)

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            say(f"{self._path} could not be written ({error.strerror}): the run goes on, and its report has gaps")


def _put(path: Path, begin: int, line: bytes) -> tuple[int, int]:
    """Write a line at a place in the file, as the last one, and return where it begins and ends.

    Raises:
        OSError: it cannot be written.
    """
    # In one go, over a line that it holds too: a kill leaves the old line or the new one.
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as stream:
        # Somebody may have cut or removed the file.
        begin = min(begin, os.fstat(stream.fileno()).st_size)
        stream.seek(begin)
        stream.write(line)
        stream.truncate()
    return begin, begin + len(line)


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any], bytes]]:
    """Yield step, numbers and text of each whole line; an attempt that was killed may have left half a line."""
    if not path.exists():
        return
    with path.open("rb") as stream:
        for line in stream:
            try:
                numbers = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if line.endswith(b"\n") and isinstance(numbers, dict) and type(step := numbers.pop(_STEP, None)) is int:
                yield step, numbers, line


def peak_memory_gib() -> float:
    """Return the most memory that this process has used so far, in GiB: of its device, or its own on a CPU."""
    accelerator: Any = getattr(sys.modules.get("torch"), "accelerator", None)
    # Older versions of torch cannot tell.
    measured = getattr(accelerator, "max_memory_allocated", None)
    if measured is not None and accelerator.is_available() and (used := measured()):
        return round(int(used) / 2**30, 3)
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 3)
