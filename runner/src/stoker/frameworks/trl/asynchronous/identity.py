"""Judges whether samplers serve the policy that they name. Pure.

The trainer scores tokens that a sampler wrote with the version that is said to have written them. If the sampler served
that version, both give the same log-probabilities up to a noise of numerics. Two faults are told apart:

- another version explains what the sampler said much better than the named one: it serves that version. This needs no
  threshold, because the other version's error is the noise itself. Versions that hardly differ explain it equally well.
- no version explains it: the sampler has another base model, or samples in another way. The threshold is a multiple of
  the noise, which is measured in the trainer and followed over the rounds that were clean.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

# Fewer tokens than this of one replica prove nothing.
LEAST_TOKENS = 16
# Another version must explain a sampler this many times better, by more than numerics can, and not by chance.
_TIMES_BETTER = 2.0
_BETTER_BY = 1e-4
_DEVIATIONS = 4.0
# An error this many times the noise has another cause. A part of the tokens, the worst, is not counted: a few of them
# are far off in every pair of implementations.
_TIMES_NOISE = 4.0
_WORST = 0.05
# Rounds that the noise is followed over, and how far from the measured one it may go.
_ROUNDS = 32
_FARTHEST = 2.0


@dataclass(frozen=True, slots=True)
class Scored:
    """Tokens that a sampler wrote, with their log-probabilities.

    Attributes:
        replica: the sampler.
        said: by the sampler.
        named: by the version that the sampler was asked for.
        others: by other versions, each under words for it.
    """

    replica: str
    said: Sequence[float]
    named: Sequence[float]
    others: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A sampler that does not serve what it names.

    Attributes:
        replica: the sampler.
        error: mean difference of its log-probabilities from those of the version it names.
        instead: words for what it serves; empty if no version explains it.
        error_instead: mean difference from those of that version.
    """

    replica: str
    error: float
    instead: str = ""
    error_instead: float = 0.0

    def __str__(self) -> str:
        if self.instead:
            return (
                f"{self.replica} serves {self.instead} (its log-probabilities differ by {self.error:.2g} from those of "
                f"the version it names, and by {self.error_instead:.2g} from these)"
            )
        return f"{self.replica} serves no version of this run (its log-probabilities differ by {self.error:.2g})"


class Judge:
    """Judges round after round, and learns the noise from those that are clean.

    Args:
        noise: mean difference between two correct computations of a log-probability, measured in the trainer.
        comparable: False if sampler and trainer cannot agree by what the user set; only versions are then compared.
    """

    def __init__(self, noise: float, comparable: bool = True) -> None:
        self._measured = noise
        self._comparable = comparable
        self._clean: deque[float] = deque(maxlen=_ROUNDS)

    @property
    def noise(self) -> float:
        """The noise of numerics as it is known now."""
        if not self._clean:
            return self._measured
        return min(max(median(self._clean), self._measured / _FARTHEST), self._measured * _FARTHEST)

    def judge(self, scored: Iterable[Scored]) -> list[Mismatch]:
        """Return one finding for each sampler that does not serve what it names; none in a clean round."""
        parts: dict[str, list[Scored]] = defaultdict(list)
        for part in scored:
            parts[part.replica].append(part)
        findings, errors = [], []
        for replica, found in sorted(parts.items()):
            said = [value for part in found for value in part.said]
            if len(said) < LEAST_TOKENS:
                continue
            own = _errors([value for part in found for value in part.named], said)
            errors.append(_typical(own))
            finding = self._finding(replica, own, said, found)
            if finding is not None:
                findings.append(finding)
        if errors and not findings:
            self._clean.append(fmean(errors))
        return findings

    def _finding(
        self, replica: str, own: Sequence[float], said: Sequence[float], parts: Sequence[Scored]
    ) -> Mismatch | None:
        error = fmean(own)
        others = {
            name: _errors([value for part in parts for value in part.others[name]], said) for name in parts[0].others
        }
        found = [
            (fmean(other), name)
            for name, other in others.items()
            if error > _TIMES_BETTER * fmean(other) + _BETTER_BY and _is_no_chance(own, other)
        ]
        wrong = self._comparable and not self._is_noise(own)
        if wrong and not found:
            # Of so few tokens, chance may explain the difference of two versions; but the named one is out in any case.
            half = _typical(own) / _TIMES_BETTER
            found = [
                (fmean(other), name)
                for name, other in others.items()
                if self._is_noise(other) and _typical(other) < half
            ]
        if found:
            error_instead, name = min(found)
            return Mismatch(replica, error, name, error_instead)
        return Mismatch(replica, error) if wrong else None

    def _is_noise(self, errors: Sequence[float]) -> bool:
        return _typical(errors) <= _TIMES_NOISE * self.noise


def _errors(scores: Sequence[float], said: Sequence[float]) -> list[float]:
    return [abs(score - value) for score, value in zip(scores, said, strict=True)]


def _typical(errors: Sequence[float]) -> float:
    """Return the mean error without the worst tokens."""
    kept = sorted(errors)[: len(errors) - math.ceil(_WORST * len(errors))]
    return fmean(kept) if kept else 0.0


def _is_no_chance(worse: Sequence[float], better: Sequence[float]) -> bool:
    """Return whether the errors of the same tokens differ by more than their scatter explains."""
    gains = [a - b for a, b in zip(worse, better, strict=True)]
    mean = fmean(gains)
    deviation = math.sqrt(sum((gain - mean) ** 2 for gain in gains) / (len(gains) - 1))
    return mean > _DEVIATIONS * deviation / math.sqrt(len(gains))
