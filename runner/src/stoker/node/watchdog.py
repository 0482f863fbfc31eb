"""Detects a run that hangs: a rank without a sign of life for too long. It decides; the launch acts.

Ranks move in lock step, so when one hangs, all fall silent. The rank with the fewest signs of life hangs; the others
wait for it in a collective operation.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from stoker.rank.pulse import STACKS_SIGNAL, TRAINING, Beat

# The first step may compile kernels, and a checkpoint may go to a slow disk, so such phases get at least an hour.
# transformers' collectives wait for half an hour (`ddp_timeout`), so a waiting rank is not held up for longer.
LEAST_ONCE_SECONDS = 3600
# A process writes its stacks in milliseconds. The pause keeps those of two ranks apart.
_SECONDS_FOR_STACKS = 0.5


class Watchdog:
    """Tracks when each rank last showed a sign of life.

    Args:
        patience_seconds: how long a step may take; 0 for no limit.
    """

    def __init__(self, patience_seconds: int) -> None:
        self._patience = patience_seconds
        self._seen: dict[int, tuple[Beat, float]] = {}

    def hangs(self, beats: Mapping[int, Beat], now: float) -> bool:
        """Return True if a rank has been silent for too long.

        Args:
            beats: the last beat of each rank; a rank that does not train yet has no beat and is not watched.
            now: seconds of a clock that never goes back.
        """
        silent = False
        for rank, beat in beats.items():
            last, since = self._seen.get(rank, (None, now))
            if beat != last:
                self._seen[rank] = (beat, now)
            elif self._patience and now - since > self._patience_in(beat.phase):
                silent = True
        return silent

    def _patience_in(self, phase: str) -> int:
        return self._patience if phase == TRAINING else max(self._patience, LEAST_ONCE_SECONDS)


def suspects(beats: Mapping[int, Beat]) -> list[int]:
    """Return the ranks that fell silent first, in order."""
    fewest = min(beat.count for beat in beats.values())
    return sorted(rank for rank, beat in beats.items() if beat.count == fewest)


def describe(beats: Mapping[int, Beat]) -> str:
    """Say in one line which ranks hang and where.

    Args:
        beats: the last beat of every rank whose node has reported.
    """
    hanging = suspects(beats)
    beat = beats[hanging[0]]
    listed = f"rank {hanging[0]}" if len(hanging) == 1 else f"ranks {', '.join(map(str, hanging))}"
    others = " while the others wait" if len(hanging) < len(beats) else ""
    return (
        f"the run hangs: no sign of life from {listed} after step {beat.step} ({beat.phase}){others}. See the log for "
        "the stacks of all ranks; STOKER_HANG_TIMEOUT_SECONDS sets how long a step may take"
    )


def print_stacks(beats: Mapping[int, Beat], say: Callable[[str], None]) -> None:
    """Make each rank of this node write the stacks of its threads to the log, one rank after another."""
    for rank, beat in sorted(beats.items()):
        say(f"stacks of rank {rank} ({beat.phase}, step {beat.step} done):")
        with suppress(ProcessLookupError):
            os.kill(beat.pid, STACKS_SIGNAL)
        time.sleep(_SECONDS_FOR_STACKS)
