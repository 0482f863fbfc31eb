"""The rows of one optimizer step: from groups of samples to each rank's slice. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.rollouts.records import Batch, Rewards, Sample, Written


@dataclass(frozen=True, slots=True)
class Row:
    """One sample, as a rank trains it.

    Attributes:
        prompt: as the data has it, a text or messages.
        prompt_ids: its tokens.
        completion_ids: everything after the prompt.
        mask: 1 where the policy wrote the token.
        logprobs: of each token, by the sampler.
        rewards: one per reward function.
        oldest: the oldest version that wrote a token of it.
        newest: the newest one.
        replica: who wrote it.
    """

    prompt: Any
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    rewards: Rewards
    oldest: int
    newest: int
    replica: str


@dataclass(frozen=True, slots=True)
class Handout:
    """What every rank gets of a batch.

    Attributes:
        rows: of all ranks, group after group.
        numbers: about the whole batch, by name.
        lists: the same, such as histograms.
        reward: mean weighted reward of the batch, with groups that are not trained.
        probed: rows that are not trained: what one version wrote alone, for the identity guard.
        skipped: rows of groups that are not trained, which the identity guard looks at all the same.
    """

    rows: tuple[Row, ...]
    numbers: Mapping[str, float]
    lists: Mapping[str, list[float]]
    reward: float
    probed: tuple[Row, ...] = ()
    skipped: tuple[Row, ...] = ()


def rows_of(groups: Iterable[Written]) -> tuple[Row, ...]:
    """Return the rows of groups, in their order.

    Raises:
        RunError: a sample has a token without a probability (70).
    """
    return tuple(_row(group.columns.get("prompt", ""), sample) for group, samples in groups for sample in samples)


def _row(prompt: Any, sample: Sample) -> Row:
    if not all(map(math.isfinite, sample.logprobs)):
        raise RunError(
            ExitCode.CRASHED, f"the sampler {sample.replica} gave tokens without a probability: look at its log"
        )
    return Row(
        prompt,
        sample.prompt_ids,
        sample.completion_ids,
        sample.mask,
        sample.logprobs,
        sample.rewards,
        sample.oldest,
        sample.newest,
        sample.replica,
    )


def is_flat(samples: Sequence[Sample], weights: Sequence[float], *, apart: bool = False) -> bool:
    """Return whether all samples of a group have the same reward, so that none has an advantage.

    Samples without a reward do not count: TRL gives them no advantage, and compares the others among themselves.

    Args:
        samples: of the group.
        weights: of the reward functions.
        apart: True if the rewards of each function are compared before they are summed up (normalize_then_sum).
    """
    if apart:
        return all(
            _is_one([reward for reward in rewards if reward is not None])
            for rewards in zip(*(sample.rewards for sample in samples), strict=True)
        )
    return _is_one(scored(samples, weights))


def _is_one(values: Sequence[float]) -> bool:
    return not values or max(values) - min(values) < 1e-8


def weighted(rewards: Rewards, weights: Sequence[float]) -> float:
    """Return the weighted sum of the rewards that apply."""
    return sum(weight * reward for reward, weight in zip(rewards, weights, strict=True) if reward is not None)


def scored(samples: Iterable[Sample | Row], weights: Sequence[float]) -> list[float]:
    """Return the weighted rewards of the samples that have one."""
    return [weighted(one.rewards, weights) for one in samples if any(reward is not None for reward in one.rewards)]


def trained_and_skipped(
    batch: Batch, weights: Sequence[float], parts: int, *, apart: bool = False
) -> tuple[tuple[Written, ...], tuple[Written, ...]]:
    """Return the groups of a batch that teach something, with as many others as the parts of a step need; and the rest.

    Args:
        batch: the batch.
        weights: of the reward functions.
        parts: into how many equal parts the rows are split: micro-batches of all ranks.
        apart: as in :func:`is_flat`.
    """
    size = len(batch.groups[0][1])
    unit = math.lcm(size, parts) // size
    flat = [is_flat(samples, weights, apart=apart) for _, samples in batch.groups]
    least = max(1, -(-(len(flat) - sum(flat)) // unit)) * unit
    spare = min(least, len(flat)) - (len(flat) - sum(flat))
    trained: list[Written] = []
    skipped: list[Written] = []
    for group, useless in zip(batch.groups, flat, strict=True):
        spare -= useless
        if useless and spare < 0:
            skipped.append(group)
        else:
            trained.append(group)
    return tuple(trained), tuple(skipped)


def slice_of(rows: Sequence[Row], rank: int, size: int) -> Sequence[Row]:
    """Return a rank's rows: TRL puts the rewards of all ranks together again in this order."""
    each = len(rows) // size
    return rows[rank * each : (rank + 1) * each]
