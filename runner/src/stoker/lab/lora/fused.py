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

    Their first matrices become rows of one, and their second ones blocks of one that is zero elsewhere, so that one
    product each serves all of them. An optimizer that changes the adapters in place changes what this computes: nothing
    is copied.

    Args:
        parts: the parts with adapters.
    """

    def __init__(self, parts: list[Part]) -> None:
        super().__init__()
        self._parts = parts
        self.adapters = nn.ModuleList(part.lora for part in parts)
        loras = [part.lora for part in parts]
        stacked = torch.cat([lora.lora_a.detach() for lora in loras])
        self._first = parts[0].first
        outputs = parts[-1].first + loras[-1].lora_b.shape[0] - self._first
        blocks = stacked.new_zeros(outputs, len(stacked))
        rank = 0
        for part, lora in zip(parts, loras, strict=True):
            place = slice(rank, rank + lora.rank)
            own = blocks[part.first - self._first :, place][: lora.lora_b.shape[0]]
            own.copy_(lora.lora_b.detach())
            lora.lora_a, lora.lora_b = nn.Parameter(stacked[place]), nn.Parameter(own)
            rank = place.stop
        self.register_buffer("stacked", stacked, persistent=False)
        self.register_buffer("blocks", blocks, persistent=False)
        self._scaling = loras[0].scaling
        # A product has one scale; adapters of others are scaled before it.
        others = [lora.scaling / self._scaling for lora in loras for _ in range(lora.rank)]
        self.register_buffer("scales", None if {*others} == {1} else stacked.new_tensor(others), persistent=False)

    def forward(self, x: torch.Tensor, base_output: torch.Tensor) -> torch.Tensor:
        """Add what the adapters say of an input to the fused layer's output, in place."""
        if not self._parts[0].lora.enabled:
            return base_output
        inputs = x.to(self.stacked.dtype)
        if torch.is_grad_enabled():
            return self._learning(inputs, base_output)
        inner = nn.functional.linear(inputs, self.stacked)
        if self.scales is not None:
            inner *= self.scales
        outputs = base_output[..., self._first : self._first + len(self.blocks)]
        if outputs.dim() == 2 and outputs.dtype == inner.dtype:
            outputs.addmm_(inner, self.blocks.t(), alpha=self._scaling)
        else:
            outputs.add_(nn.functional.linear(inner, self.blocks), alpha=self._scaling)
        return base_output

    def _learning(self, inputs: torch.Tensor, base_output: torch.Tensor) -> torch.Tensor:
        """Do the same so that gradients reach the adapters, which they do only by their own tensors."""
        first = torch.cat([part.lora.lora_a for part in self._parts])
        # Not while vLLM generates, though the adapters it shares with a model that trains are in training mode.
        inner = nn.functional.linear(self._parts[0].lora.dropout(inputs), first)
        for part, own in zip(self._parts, inner.split([part.lora.rank for part in self._parts], -1), strict=True):
            second = part.lora.lora_b
            outputs = base_output[..., part.first : part.first + second.shape[0]]
            outputs.add_(nn.functional.linear(own, second), alpha=part.lora.scaling)
        return base_output
