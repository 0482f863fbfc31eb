"""The adapters of a fused layer, as vLLM has them: one matrix for q, k and v, an adapter for each of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from stoker.lab.lora.layers import TrainableLoRALinear


@dataclass(frozen=True)
class Part:
    """A part of a fused layer that has an adapter.

    Attributes:
        name: the part's own name, as in a model that fuses nothing.
        lora: its adapter.
        first: the first of the fused layer's outputs that is this part's.
    """

    name: str
    lora: TrainableLoRALinear
    first: int


class FusedLoRA(nn.Module):
    """What the adapters of a fused layer add to its output.

    Their first matrices become rows of one, so that one product serves all of them. An optimizer that changes the
    adapters in place changes what this computes: nothing is copied.

    Args:
        parts: the parts with adapters.
    """

    def __init__(self, parts: list[Part]) -> None:
        super().__init__()
        self._parts = parts
        self.adapters = nn.ModuleList(part.lora for part in parts)
        stacked = torch.cat([part.lora.lora_a.detach() for part in parts])
        for part, rows in zip(parts, stacked.split([part.lora.rank for part in parts]), strict=True):
            part.lora.lora_a = nn.Parameter(rows)
        self.register_buffer("stacked", stacked, persistent=False)

    def forward(self, x: torch.Tensor, base_output: torch.Tensor) -> torch.Tensor:
        """Add what the adapters say of an input to the fused layer's output, in place."""
        if not self._parts[0].lora.enabled:
            return base_output
        inputs, first = x.to(self.stacked.dtype), self.stacked
        if torch.is_grad_enabled():
            # Gradients reach the adapters only by their own tensors.
            first = torch.cat([part.lora.lora_a for part in self._parts])
            # Not while vLLM generates, though the adapters it shares with a model that trains are in training mode.
            inputs = self._parts[0].lora.dropout(inputs)
        inner = nn.functional.linear(inputs, first)
        for part, own in zip(self._parts, inner.split([part.lora.rank for part in self._parts], -1), strict=True):
            second = part.lora.lora_b
            outputs = base_output[..., part.first : part.first + second.shape[0]]
            outputs.add_(nn.functional.linear(own, second), alpha=part.lora.scaling)
        return base_output
