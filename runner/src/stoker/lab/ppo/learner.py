"""One step of PPO on a model that is loaded: what answers are worth, and the updates that this asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stoker.lab.data import pad_token_id
from stoker.lab.errors import LabError
from stoker.lab.ppo.advantages import gae, masked_mean, token_rewards, whiten
from stoker.lab.ppo.config import RLHFConfig
from stoker.lab.ppo.loss import policy_loss, value_loss
from stoker.lab.ppo.rollouts import Rollout, RolloutBatch
from stoker.lab.ppo.value_head import ValueHead, output_layer, scored


@dataclass(frozen=True, slots=True)
class Experience:
    """Answers, and what they were worth when they were sampled.

    Attributes:
        batch: the answers.
        logprobs: of their tokens.
        values: before their tokens.
        advantages: of their tokens.
        returns: what the values should have been.
        metrics: what the answers show.
    """

    batch: RolloutBatch
    logprobs: torch.Tensor
    values: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    metrics: dict[str, float]


class Learner:
    """A policy's model with its value head and their optimizer.

    The model stays in evaluation mode: dropout would make other policies of it than the one that was sampled.

    Args:
        model: as PEFT has it.
        tokenizer: its tokenizer.
        config: of the training.
        mixed: compute in bfloat16 where that is safe.
        head: a value head to go on with; a new one by default.

    Attributes:
        head: the value head.
        optimizer: of adapter and value head.
        start: the adapter as it was, if it is the reference.
    """

    def __init__(
        self, model: Any, tokenizer: Any, config: RLHFConfig, mixed: bool = False, head: ValueHead | None = None
    ) -> None:
        self.model, self._config, self._mixed = model.eval(), config, mixed
        self._pad = pad_token_id(tokenizer)
        self._device = model.device
        weight: Any = output_layer(model.get_base_model()).weight
        self.head = (head or ValueHead(weight.shape[1])).to(self._device)
        self.adapter = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [*self.adapter.values()], "lr": config.learning_rate},
                {"params": [*self.head.parameters()], "lr": config.value_learning_rate},
            ],
            weight_decay=0.0,
        )
        self.start: dict[str, torch.Tensor] | None = None
        if config.reference == "start":
            self.start = {name: value.detach().clone() for name, value in self.adapter.items()}

    def experience(self, rollouts: Sequence[Rollout], scores: Sequence[float]) -> Experience:
        """Return what answers are worth.

        Args:
            rollouts: the answers.
            scores: the reward of each.
        """
        config = self._config
        batch = RolloutBatch.of([(one.prompt_ids, one.ids) for one in rollouts], self._pad).to(self._device)
        logprobs, values, reference, entropy = (torch.zeros_like(batch.mask) for _ in range(4))
        with torch.no_grad():
            for rows in _parts(list(range(len(rollouts))), config.mini_batch_size):
                part = batch[rows]
                width = part.mask.shape[1]
                found = scored(self.model, self.head, part, config.temperature, self._mixed)
                logprobs[rows, :width], values[rows, :width] = found.logprobs, found.values
                entropy[rows, :width] = found.entropy()
                with self._reference():
                    other = scored(self.model, self.head, part, config.temperature, self._mixed)
                reference[rows, :width] = other.logprobs
        given = torch.tensor(scores, dtype=torch.float32, device=self._device)
        cut = torch.tensor([not one.ended for one in rollouts], dtype=torch.float32, device=self._device)
        mask = batch.mask
        rewards = token_rewards(given - config.missing_eos_penalty * cut, logprobs, reference, mask, config.kl_coef)
        if config.whiten_rewards:
            rewards = whiten(rewards, mask, shift=False)
        advantages, returns = gae(rewards, values, mask, config.gamma, config.lam)
        if config.whiten_advantages:
            advantages = whiten(advantages, mask)
        metrics = {
            "reward": given.mean().item(),
            "reward_std": given.std(unbiased=False).item(),
            "kl": ((logprobs - reference) * mask).sum(1).mean().item(),
            "entropy": masked_mean(entropy, mask).item(),
            "length": mask.sum(1).mean().item(),
            "ended": 1 - cut.mean().item(),
        }
        told = [one.logprobs for one in rollouts]
        if all(one is not None for one in told):
            sampled = torch.zeros_like(mask)
            for row, one in enumerate(told):
                sampled[row, : len(one or ())] = torch.tensor(one)
            metrics["sampler_distance"] = masked_mean((sampled - logprobs).abs(), mask).item()
        return Experience(batch, logprobs * mask, values * mask, advantages, returns, metrics)

    def update(self, experience: Experience) -> dict[str, float]:
        """Learn from answers, and return the means over all updates.

        Raises:
            LabError: a loss or a gradient is not a number; the weights are as they were before that update.
        """
        config, count = self._config, len(experience.batch.ids)
        seen: list[dict[str, float]] = []
        for _ in range(config.ppo_epochs):
            order = torch.randperm(count).tolist()
            seen += [self._learn(experience, rows) for rows in _parts(order, config.mini_batch_size)]
        return {name: sum(one[name] for one in seen) / len(seen) for name in seen[0]}

    def _learn(self, experience: Experience, rows: list[int]) -> dict[str, float]:
        config = self._config
        part = experience.batch[rows]
        mask, width = part.mask, part.mask.shape[1]
        old, values, advantages, returns = (
            whole[rows, :width]
            for whole in (experience.logprobs, experience.values, experience.advantages, experience.returns)
        )
        found = scored(self.model, self.head, part, config.temperature, self._mixed)
        of_policy, clipped = policy_loss(found.logprobs, old, advantages, mask, config.clip_range)
        of_value = value_loss(found.values, values, returns, mask, config.clip_range_value)
        loss = of_policy + config.vf_coef * of_value
        self.optimizer.zero_grad()  # an interrupted update leaves gradients
        loss.backward()
        weights = [*self.adapter.values(), *self.head.parameters()]
        norm = nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
        if not torch.isfinite(loss) or not torch.isfinite(norm):
            self.optimizer.zero_grad()
            raise LabError(
                f"RLHF: the loss is {loss.item()} and the gradient {norm.item()}: lower learning_rate, or look for "
                "rewards that are very large; the adapter is as it was before this update"
            )
        if config.max_grad_norm:
            nn.utils.clip_grads_with_norm_(weights, config.max_grad_norm, norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            moved = masked_mean(old - found.logprobs, mask)
        return {
            "loss": loss.item(),
            "policy_loss": of_policy.item(),
            "value_loss": of_value.item(),
            "clip_fraction": clipped.item(),
            "policy_kl": moved.item(),
            "grad_norm": norm.item(),
        }

    @contextmanager
    def _reference(self) -> Iterator[None]:
        """Let the model be the reference for a while."""
        if self.start is None:
            with self.model.disable_adapter():
                yield
            return
        now = {name: value.data for name, value in self.adapter.items()}
        try:
            for name, value in self.adapter.items():
                value.data = self.start[name]
            yield
        finally:
            for name, value in self.adapter.items():
                value.data = now[name]


def _parts(rows: list[int], size: int) -> list[list[int]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]
