"""The two losses of PPO, each the mean over the tokens of answers; `mask` is 1 at these."""

from __future__ import annotations

import torch

from stoker.lab.ppo.advantages import masked_mean


def policy_loss(
    logprobs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor, clip_range: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the clipped loss of the policy, and the part of the tokens where it is clipped.

    Args:
        logprobs: of the tokens, by the policy that is trained.
        old: the same by the policy that sampled them.
        advantages: of the tokens.
        mask: where the answers are.
        clip_range: how far the ratio of both probabilities may be from 1.
    """
    # What pads has any log-probability: its ratio must not become infinite, since 0 times infinity is no number.
    ratio = ((logprobs - old) * mask).exp()
    free = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_range, 1 + clip_range)
    return masked_mean(torch.maximum(free, clipped), mask), masked_mean((clipped > free).float(), mask)


def value_loss(
    values: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor, clip_range: float
) -> torch.Tensor:
    """Return the clipped loss of the values: half of the larger squared distance from the returns.

    Args:
        values: by the value head that is trained.
        old: those that the advantages were computed with.
        returns: what the values should have been.
        mask: where the answers are.
        clip_range: how far a value may move from the old one.
    """
    clipped = old + (values - old).clamp(-clip_range, clip_range)
    return 0.5 * masked_mean(torch.maximum((values - returns) ** 2, (clipped - returns) ** 2), mask)
