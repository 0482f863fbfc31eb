"""How a linear layer of vLLM computes with adapters. Imports vLLM."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearMethodBase

from stoker.lab.lora.fused import FusedLoRA


class LoRALinearMethod(LinearMethodBase):
    """Computes as another method does, and adds what adapters say.

    A method is where the product is formed: before ranks are summed up, and whatever the layer returns beside it.

    Args:
        method: the layer's own method.
        lora: the adapters.
    """

    def __init__(self, method: LinearMethodBase, lora: FusedLoRA) -> None:
        self.method = method
        self.lora = lora

    def create_weights(self, *args: Any, **kwargs: Any) -> None:
        """Create the layer's weights as its own method does."""
        self.method.create_weights(*args, **kwargs)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Prepare the weights as the layer's own method does."""
        self.method.process_weights_after_loading(layer)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return the product with the adapters' part in it."""
        return self.lora(x, self.method.apply(layer, x, bias))
