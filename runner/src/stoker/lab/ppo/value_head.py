"""What PPO asks of a model: the log-probability of each token of an answer, and the value before it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stoker.lab.errors import LabError
from stoker.lab.ppo.rollouts import RolloutBatch


class ValueHead(nn.Linear):
    """Says what reward is to come, from the hidden state before each token; it begins at zero.

    Args:
        hidden_size: length of a hidden state.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__(hidden_size, 1, dtype=torch.float32)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


@dataclass(frozen=True, slots=True)
class TokenScores:
    """What a model says of answers: a row for each, and a column for each token.

    Attributes:
        logprobs: of the tokens.
        values: before the tokens.
        logits: what the tokens were chosen by.
    """

    logprobs: torch.Tensor
    values: torch.Tensor
    logits: torch.Tensor

    def entropy(self) -> torch.Tensor:
        """Return the entropy before each token, in nats."""
        logprobs = self.logits.log_softmax(-1)
        return -(logprobs.exp() * logprobs).sum(-1)


def output_layer(model: Any) -> nn.Module:
    """Return the layer that makes logits of hidden states.

    Raises:
        LabError: the model has none.
    """
    found = model.get_output_embeddings()
    if found is None:
        raise LabError(
            f"{type(model).__name__} has no output embeddings, which PPO reads hidden states from: use another model"
        )
    return found


def scored(model: Any, head: ValueHead, batch: RolloutBatch, temperature: float, mixed: bool = False) -> TokenScores:
    """Return what a model says of answers, in float32.

    Args:
        model: the model, with or without its adapter.
        head: the value head.
        batch: the answers.
        temperature: that they were sampled with.
        mixed: compute in bfloat16 where that is safe.
    """
    width = batch.mask.shape[1]
    positions = (batch.attention.cumsum(1) - 1).clamp(min=0)
    device = batch.ids.device.type
    autocast: Any = torch.autocast(device, torch.bfloat16) if mixed else nullcontext()
    with autocast, _inputs_of(output_layer(model.get_base_model())) as hidden:
        logits = model(
            input_ids=batch.ids, attention_mask=batch.attention, position_ids=positions, use_cache=False,
            logits_to_keep=width + 1,
        ).logits  # fmt: skip
    # A token is chosen by what its predecessor says.
    logits = logits[:, -width - 1 : -1].float() / temperature
    chosen = logits.gather(2, batch.ids[:, -width:, None]).squeeze(2)
    values = head(hidden[-1][:, -width - 1 : -1].float()).squeeze(2)
    return TokenScores(chosen - logits.logsumexp(-1), values, logits)


@contextmanager
def _inputs_of(layer: nn.Module) -> Iterator[list[torch.Tensor]]:
    """Yield a list that gets the input of each call of a layer."""
    found: list[torch.Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    try:
        yield found
    finally:
        handle.remove()
