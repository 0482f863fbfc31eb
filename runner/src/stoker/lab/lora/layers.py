"""The trainable part of LoRA as a layer of its own, and the linear layer that has one."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn


class TrainableLoRALinear(nn.Module):
    """What LoRA adds to the output of a frozen linear layer.

    Args:
        in_features: inputs of the frozen layer.
        out_features: outputs of the frozen layer.
        rank: rank of the adapter.
        alpha: its scale: what it adds is multiplied by `alpha / rank`.
        dropout: dropout before the adapter, in training only.

    Attributes:
        enabled: whether it adds anything; without it, the layer is the base model's.
    """

    def __init__(
        self, in_features: int, out_features: int, rank: int = 8, alpha: int = 16, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.rank = rank
        self.scaling = alpha / rank
        self.enabled = True
        self.lora_a = nn.Parameter(torch.empty(rank, in_features))
        self.lora_b = nn.Parameter(torch.zeros(out_features, rank))
        self.dropout = nn.Dropout(dropout) if dropout > 0 else nn.Identity()
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: torch.Tensor, base_output: torch.Tensor) -> torch.Tensor:
        """Add what the adapter says of an input to what the frozen layer says of it."""
        if not self.enabled:
            return base_output
        inner = nn.functional.linear(self.dropout(x.to(self.lora_a.dtype)), self.lora_a)
        added = nn.functional.linear(inner, self.lora_b) * self.scaling
        return (base_output + added).to(base_output.dtype)

    def extra_repr(self) -> str:
        """Name the sizes."""
        return f"in={self.lora_a.shape[1]}, out={self.lora_b.shape[0]}, rank={self.rank}, scaling={self.scaling}"


class LoRALinear(nn.Module):
    """A frozen linear layer and its adapter, in the layer's place.

    Args:
        base_layer: the frozen layer. It may return a tuple that begins with its output.
        lora: its adapter.
    """

    def __init__(self, base_layer: nn.Module, lora: TrainableLoRALinear) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.lora = lora

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return what the frozen layer returns, with the adapter's part in its output."""
        output = self.base_layer(x, *args, **kwargs)
        if isinstance(output, tuple):
            return (self.lora(x, output[0]), *output[1:])
        return self.lora(x, output)
