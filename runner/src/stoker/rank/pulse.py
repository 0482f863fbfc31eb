"""The signs of life of a training process: a few bytes that its runner reads, with its phase and step.

The bytes are in a memory-mapped file, so a beat costs less than a microsecond. On SIGUSR1, a process with a pulse
prints the stack of every thread, even if the threads are blocked.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
import struct
from dataclasses import dataclass
from pathlib import Path

# The phases of a training process.
FIRST_STEP = "first step"
TRAINING = "training"
EVALUATING = "evaluating"
SAVING = "saving"
FINISHING = "finishing"
PHASES = (FIRST_STEP, TRAINING, EVALUATING, SAVING, FINISHING)

STACKS_SIGNAL = signal.SIGUSR1

# Beats so far, step, index of the phase, process id.
_RECORD = struct.Struct("<qqqq")


@dataclass(frozen=True, slots=True)
class Beat:
    """The last sign of life of a rank.

    Attributes:
        count: beats so far.
        step: steps completed.
        phase: one of `PHASES`.
        pid: the rank's process id on its node.
    """

    count: int
    step: int
    phase: str
    pid: int


class Pulse:
    """The pulse of this process. The runner watches it from its first beat on.

    Args:
        folder: the folder of the node's ranks.
        rank: this process's rank in the whole run.

    Raises:
        OSError: the folder cannot be written to.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        # faulthandler is written in C, so it works while the main thread holds the GIL or waits in a collective.
        faulthandler.register(STACKS_SIGNAL, all_threads=True, chain=False)
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / f"{rank}.pulse", os.O_RDWR | os.O_CREAT, 0o660)
        try:
            os.ftruncate(descriptor, _RECORD.size)
            self._memory = mmap.mmap(descriptor, _RECORD.size)
        finally:
            os.close(descriptor)
        self._count = 0

    def beat(self, phase: str, step: int) -> None:
        """Show a sign of life.

        Args:
            phase: what the process does next, one of `PHASES`.
            step: steps completed.
        """
        self._count += 1
        _RECORD.pack_into(self._memory, 0, self._count, step, PHASES.index(phase), os.getpid())


def read_beats(folder: Path) -> dict[int, Beat]:
    """Return the last beat of each rank of this node that has started training, by rank."""
    found = {}
    for path in folder.glob("*.pulse"):
        try:
            count, step, phase, pid = _RECORD.unpack(path.read_bytes())
        except (OSError, struct.error):
            continue
        if count:
            found[int(path.stem)] = Beat(count, step, PHASES[phase], pid)
    return found
