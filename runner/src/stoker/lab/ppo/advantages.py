"""From the score of an answer to the advantage of each of its tokens.

All tensors have a row for each answer and a column for each token; `mask` is 1 at the tokens of an answer, which come
first, and 0 at what pads it.
"""

from __future__ import annotations

import torch


def token_rewards(
    scores: torch.Tensor, logprobs: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor, kl_coef: float
) -> torch.Tensor:
    """Return the reward of each token: the price of leaving the reference, and at the last token the score.

    Args:
        scores: of the answers.
        logprobs: of the tokens, by the policy that sampled them.
        reference: the same by the reference.
        mask: where the answers are.
        kl_coef: price of a nat.
    """
    rewards = -kl_coef * (logprobs - reference) * mask
    last = (mask.sum(1).long() - 1).clamp(min=0)
    return rewards.scatter_add(1, last[:, None], scores[:, None].to(rewards.dtype)) * mask


def gae(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return advantages by generalized advantage estimation, and the returns that the values should have been.

    An answer ends with its last token: what would come after it is worth nothing.

    Args:
        rewards: of the tokens.
        values: expected before each token.
        mask: where the answers are.
        gamma: what a reward is worth one token earlier.
        lam: 1 trusts the rewards, 0 the values.
    """
    values = values * mask
    advantages = torch.zeros_like(values)
    after = advantage = torch.zeros_like(values[:, 0])
    for token in range(values.shape[1] - 1, -1, -1):
        delta = rewards[:, token] + gamma * after - values[:, token]
        advantage = (delta + gamma * lam * advantage) * mask[:, token]
        advantages[:, token] = advantage
        after = values[:, token]
    return advantages, advantages + values


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean of what the mask shows."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def whiten(values: torch.Tensor, mask: torch.Tensor, shift: bool = True) -> torch.Tensor:
    """Return values with standard deviation 1 and, if they are shifted, mean 0; 0 where the mask is."""
    mean = masked_mean(values, mask)
    deviation = masked_mean((values - mean) ** 2, mask).sqrt()
    centred = (values - mean) / (deviation + 1e-8)
    return (centred if shift else centred + mean / (deviation + 1e-8)) * mask
