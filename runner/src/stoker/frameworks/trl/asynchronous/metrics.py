"""Texts of a few samples, as a file in the output folder; and numbers about a batch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from stoker.contract.metrics import SAMPLES, plain
from stoker.contract.secrets import hide
from stoker.contract.words import say
from stoker.frameworks.trl.asynchronous.rows import is_flat, scored
from stoker.rollouts.records import Batch, Written

# Where one bin of a histogram of ratios ends and the next begins.
RATIO_EDGES = (0.5, 0.8, 0.9, 0.95, 0.99, 1.01, 1.05, 1.1, 1.25, 2.0)
# How much of a step's samples is shown, and how large the file may become before it is begun anew.
_GROUPS, _SAMPLES, _CHARACTERS, _BYTES = 2, 4, 2000, 8 << 20


class SamplesFile:
    """Texts of a few groups of each step. A full file is kept once, as `samples.1.jsonl`.

    A file that cannot be written costs a run its texts, and nothing else.

    Args:
        folder: the output folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / SAMPLES
        self._complained = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _end_with_a_line(self._path)
        except OSError as error:
            self._complain(error)

    def write(self, batch: Batch) -> None:
        """Add a few groups of a batch."""
        try:
            self._add(batch)
        except OSError as error:
            self._complain(error)
            with suppress(OSError):
                _end_with_a_line(self._path)

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            say(f"{self._path} could not be written ({error.strerror}): the run goes on, and lacks texts of samples")

    def _add(self, batch: Batch) -> None:
        if self._path.exists() and self._path.stat().st_size > _BYTES:
            self._path.replace(self._path.with_name("samples.1.jsonl"))
        with self._path.open("a") as stream:
            for group, samples in batch.groups[:_GROUPS]:
                shown = {
                    "step": batch.step,
                    "epoch": group.epoch,
                    "row": group.row,
                    "prompt": _text(group.columns.get("prompt")),
                    "samples": [
                        {
                            "version": sample.oldest,
                            "replica": sample.replica,
                            "rewards": [plain(reward) for reward in sample.rewards],
                            "finish": sample.finish,
                            "text": _text(sample.text),
                        }
                        for sample in samples[:_SAMPLES]
                    ],
                }
                stream.write(json.dumps(shown, ensure_ascii=False) + "\n")


def _end_with_a_line(path: Path) -> None:
    """Drop half a line, of an attempt that was killed or of a disk that was full."""
    if path.exists() and not (written := path.read_bytes()).endswith(b"\n"):
        os.truncate(path, written.rfind(b"\n") + 1)


def _text(value: Any) -> str:
    return hide(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))[:_CHARACTERS]


class Lengths:
    """Mean length of the answers that were trained, against all that were written: 1.0 if none is preferred."""

    def __init__(self) -> None:
        self._written = [0, 0]
        self._trained = [0, 0]

    def written(self, groups: Iterable[Written]) -> None:
        """Count groups that a sampler has completed."""
        _count(self._written, groups)

    def trained(self, groups: Iterable[Written]) -> None:
        """Count groups that a step trains."""
        _count(self._trained, groups)

    @property
    def bias(self) -> float:
        """The ratio of the two mean lengths; NaN before the first answer."""
        if not (self._written[1] and self._trained[1]):
            return math.nan
        return (self._trained[0] / self._trained[1]) / (self._written[0] / self._written[1])


def _count(totals: list[int], groups: Iterable[Written]) -> None:
    for _, samples in groups:
        totals[0] += sum(sum(sample.mask) for sample in samples)
        totals[1] += len(samples)


def numbers_of(
    batch: Batch, weights: Sequence[float], *, apart: bool = False
) -> tuple[dict[str, float], dict[str, list[float]], float]:
    """Return numbers and histograms about a batch, and its mean reward.

    Args:
        batch: the batch.
        weights: of the reward functions.
        apart: as in :func:`stoker.frameworks.trl.asynchronous.rows.is_flat`.
    """
    samples = [sample for _, found in batch.groups for sample in found]
    stale = [batch.step - sample.oldest for sample in samples]
    own: dict[str, list[float]] = {}
    for sample in samples:
        for name, value in sample.metrics.items():
            own.setdefault(f"rollout/{name}", []).append(value)
        for name, value in sample.logged.items():
            own.setdefault(name, []).append(value)
    numbers = {
        **{name: fmean(values) for name, values in own.items()},
        "staleness/mean": fmean(stale),
        "staleness/max": float(max(stale)),
        "rollout/wait_seconds": batch.waited,
        "rollout/idle_seconds": batch.idle,
        "rollout/depth": float(batch.depth),
        "rollout/outstanding": float(batch.outstanding),
        "rollout/flat_groups": fmean(is_flat(found, weights, apart=apart) for _, found in batch.groups),
        "rollout/sample_seconds": fmean(sample.seconds for sample in samples),
    }
    histogram = [float(stale.count(steps)) for steps in range(max(stale) + 1)]
    rewards = scored(samples, weights)
    return numbers, {"staleness/histogram": histogram}, fmean(rewards) if rewards else math.nan
