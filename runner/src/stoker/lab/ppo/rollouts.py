"""Answers of the policy to learn from, by vLLM or by transformers, and the tensors that they are learned in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from stoker.lab.data import end_token_ids, pad_token_id
from stoker.lab.ppo.config import RLHFConfig


@dataclass(frozen=True, slots=True)
class Rollout:
    """One answer.

    Attributes:
        prompt_ids: tokens of the prompt.
        ids: tokens of the answer, with its end if it has one.
        text: the answer.
        logprobs: of its tokens, by what sampled them, at the temperature that they were sampled with; None if that is
            not told, and then the policy is asked.
        ended: whether it ended by itself.
    """

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...] | None
    ended: bool


class AnswerSampler(Protocol):
    """What generates."""

    def sample(self, prompts: Sequence[Sequence[int]]) -> list[Rollout]:
        """Answer each prompt once, by the policy as it is now."""


class SamplingPolicy(Protocol):
    """What is sampled from: a `Policy`."""

    @property
    def model(self) -> Any:
        """The model with its adapter."""

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer."""

    def generate(self, prompts: Sequence[Sequence[int]], **sampling: Any) -> list[Any]:
        """Answer with vLLM."""


class VllmSampler:
    """Samples with the policy's vLLM, which gets the adapter anew after each change.

    Args:
        policy: the policy.
        config: how to sample.
    """

    def __init__(self, policy: SamplingPolicy, config: RLHFConfig) -> None:
        self._policy, self._config = policy, config

    def sample(self, prompts: Sequence[Sequence[int]]) -> list[Rollout]:
        """Answer each prompt once.

        On CPUs each has a seed, which comes from torch: a resumed run samples the same. On GPUs this would slow vLLM
        down and repeat nothing, because its batches never come in the same order there.
        """
        config = self._config
        seeds = None if torch.cuda.is_available() else torch.randint(2**31, (len(prompts),)).tolist()
        answers = self._policy.generate(
            prompts, max_tokens=config.max_new_tokens, temperature=config.temperature, seed=seeds, logprobs=0
        )
        # vLLM tells the log-probabilities before the temperature changes them.
        told = config.temperature == 1.0
        return [
            Rollout(
                tuple(prompt), answer.token_ids, answer.text, answer.logprobs if told else None,
                answer.finish != "length",
            )
            for prompt, answer in zip(prompts, answers, strict=True)
        ]  # fmt: skip


class TransformersSampler:
    """Samples with the model that trains.

    Args:
        policy: the policy.
        config: how to sample.
        batch_size: prompts at a time; all of them by default.
    """

    def __init__(self, policy: SamplingPolicy, config: RLHFConfig, batch_size: int | None = None) -> None:
        self._policy, self._config, self._batch_size = policy, config, batch_size

    def sample(self, prompts: Sequence[Sequence[int]]) -> list[Rollout]:
        """Answer each prompt once."""
        size = self._batch_size or len(prompts)
        return [
            found for start in range(0, len(prompts), size) for found in self._answers(prompts[start : start + size])
        ]

    def _answers(self, prompts: Sequence[Sequence[int]]) -> list[Rollout]:
        from transformers import GenerationConfig

        model, tokenizer, config = self._policy.model, self._policy.tokenizer, self._config
        ends = end_token_ids(model, tokenizer)
        batch = RolloutBatch.of([(prompt, ()) for prompt in prompts], pad_token_id(tokenizer)).to(model.device)
        with torch.no_grad():
            found = model.generate(
                input_ids=batch.ids,
                attention_mask=batch.attention,
                # What a model comes with, such as top_k, would make another policy of it.
                generation_config=GenerationConfig(
                    max_new_tokens=config.max_new_tokens, do_sample=True, temperature=config.temperature, top_k=0,
                    top_p=1.0, repetition_penalty=1.0, eos_token_id=ends or None, pad_token_id=pad_token_id(tokenizer),
                    use_cache=True,
                ),
            )  # fmt: skip
        width = batch.ids.shape[1]
        return [self._answer(prompt, row[width:].tolist(), ends) for prompt, row in zip(prompts, found, strict=True)]

    def _answer(self, prompt: Sequence[int], ids: list[int], ends: Sequence[int]) -> Rollout:
        end = next((at for at, token in enumerate(ids) if token in ends), None)
        ids = ids if end is None else ids[: end + 1]
        text = self._policy.tokenizer.decode(ids, skip_special_tokens=True)
        return Rollout(tuple(prompt), tuple(ids), text, None, end is not None)


def sampler_of(policy: SamplingPolicy, config: RLHFConfig) -> AnswerSampler:
    """Return the sampler that a config names."""
    return VllmSampler(policy, config) if config.sampler == "vllm" else TransformersSampler(policy, config)


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """Prompts with their answers: prompts end, and answers begin, in the same column.

    Attributes:
        ids: tokens of prompts and answers, padded on both sides.
        attention: 1 where a token is, 0 where padding is.
        mask: for the answers' columns alone: 1 where a token is.
    """

    ids: torch.Tensor
    attention: torch.Tensor
    mask: torch.Tensor

    @staticmethod
    def of(pairs: Sequence[tuple[Sequence[int], Sequence[int]]], pad: int) -> RolloutBatch:
        """Return a batch of prompts, each with its answer.

        Args:
            pairs: tokens of each prompt and its answer.
            pad: the token that pads.
        """
        before, after = (max(len(pair[side]) for pair in pairs) for side in (0, 1))
        ids, attention = [], []
        for prompt, answer in pairs:
            left, right = before - len(prompt), after - len(answer)
            ids.append([pad] * left + [*prompt, *answer] + [pad] * right)
            attention.append([0] * left + [1] * (len(prompt) + len(answer)) + [0] * right)
        mask = torch.tensor(attention)[:, before:]
        return RolloutBatch(torch.tensor(ids), torch.tensor(attention), mask.float())

    def __getitem__(self, rows: Sequence[int]) -> RolloutBatch:
        """Return a batch of some rows, no wider than they need."""
        mask, attention = self.mask[rows], self.attention[rows]
        left = int(attention.argmax(1).min())
        right = mask.shape[1] - int(mask.sum(1).max())
        end = self.ids.shape[1] - right
        return RolloutBatch(self.ids[rows, left:end], attention[:, left:end], mask[:, : mask.shape[1] - right])

    def to(self, device: torch.device) -> RolloutBatch:
        """Return it on a device."""
        return RolloutBatch(self.ids.to(device), self.attention.to(device), self.mask.to(device))
