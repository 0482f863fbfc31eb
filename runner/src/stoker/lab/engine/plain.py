"""Layers of vLLM that keep their weights as they were loaded. Imports vLLM.

On CPU, vLLM packs weights for its own kernels and drops what it packed. Then there is nothing left to share.
"""

from __future__ import annotations

import torch
from torch import nn
from vllm.model_executor.layers.linear import LinearMethodBase, UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.platforms import current_platform

from stoker.lab.errors import LabError


class PlainLinearMethod(UnquantizedLinearMethod):
    """A linear layer whose weight stays where it is."""

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Leave the weight alone."""

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Multiply."""
        return nn.functional.linear(x, layer.weight, bias)


class PlainEmbeddingMethod(UnquantizedEmbeddingMethod):
    """An embedding whose weight stays where it is, and is not packed a second time for the output layer."""

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Leave the weight alone."""

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Multiply."""
        return nn.functional.linear(x, layer.weight, bias)


def keep_weights(model: nn.Module) -> None:
    """Make a model's layers keep their weights. Call it before vLLM prepares the weights for its kernels.

    Args:
        model: of vLLM, loaded.

    Raises:
        LabError: its weights are quantized.
    """
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, UnquantizedLinearMethod):
            if current_platform.is_cpu():
                module.quant_method = PlainLinearMethod()
        elif isinstance(method, UnquantizedEmbeddingMethod):
            if current_platform.is_cpu():
                module.quant_method = PlainEmbeddingMethod()
        elif isinstance(method, LinearMethodBase):
            raise LabError(
                f"{name} has quantized weights ({type(method).__name__}), which cannot be trained: load a model in "
                "bfloat16, float16 or float32"
            )
