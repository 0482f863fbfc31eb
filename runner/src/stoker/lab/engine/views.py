"""A model of transformers whose weights are those of an engine: the same memory, not a copy."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from stoker.lab.errors import LabError
from stoker.lab.lora.injector import parts_of

# What vLLM calls a layer within the layer that adds adapters to it.
_WRAPPED = "base_layer"


def model_of_views(engine_model: nn.Module, config: Any, dtype: torch.dtype, ranks: int = 1) -> Any:
    """Make a model of transformers from an engine's tensors.

    Args:
        engine_model: the model of vLLM.
        config: of transformers, for the same model.
        dtype: of the weights.
        ranks: over which the engine has cut its weights.

    Returns:
        The model, frozen. Each of its parameters lies in the engine's memory.

    Raises:
        LabError: the engine has no tensor of the same shape for one of the parameters.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.requires_grad_(False)
    tensors = _tensors(engine_model, ranks)
    _make_buffers(model, next(iter(tensors.values())).device)
    for name, parameter in list(model.named_parameters()):
        parent, _, last = name.rpartition(".")
        view = nn.Parameter(_view(name, parameter, tensors, ranks), requires_grad=False)
        model.get_submodule(parent).register_parameter(last, view)
    model.tie_weights()
    return model.eval()


def _tensors(engine_model: nn.Module, ranks: int) -> dict[str, torch.Tensor]:
    """Return an engine's tensors by the names that they have in a model that fuses nothing."""
    found = {name: parameter.data for name, parameter in engine_model.named_parameters()}
    found = {_unwrapped(name): tensor for name, tensor in found.items()}
    for wrapped, module in engine_model.named_modules():
        name = _unwrapped(wrapped)
        if hasattr(module, "num_embeddings_padded"):
            if ranks > 1:  # cut with what it is padded to
                continue
            found[f"{name}.weight"] = module.weight.data[: module.org_vocab_size]
            if getattr(module, "bias", None) is not None:
                found[f"{name}.bias"] = module.bias.data[: module.org_vocab_size]
        elif hasattr(module, "output_partition_sizes"):
            first = 0
            for part, outputs in parts_of(engine_model, name, module):
                for kind in ("weight", "bias"):
                    if getattr(module, kind, None) is not None:
                        found[f"{part}.{kind}"] = getattr(module, kind).data[first : first + outputs]
                first += outputs
    return found


def _unwrapped(name: str) -> str:
    """Return the name that a tensor or a layer has in an engine that serves no adapters."""
    return name.replace(f".{_WRAPPED}.", ".").removesuffix(f".{_WRAPPED}")


def _view(name: str, wanted: torch.Tensor, tensors: dict[str, torch.Tensor], ranks: int) -> torch.Tensor:
    found = tensors.get(name)
    fits = found is not None and (found.shape == wanted.shape or (ranks > 1 and found.dim() == wanted.dim()))
    if found is None or not fits or found.dtype != wanted.dtype:
        has = "nothing of that name" if found is None else f"{list(found.shape)} of {found.dtype}"
        raise LabError(
            f"the engine cannot share {name}, {list(wanted.shape)} of {wanted.dtype}: it has {has}. For this model "
            'write TrainableEngine(…, backend="transformers"), or Policy(…) without share_weights'
        )
    return found


def _make_buffers(model: Any, device: torch.device) -> None:
    """Compute what a checkpoint does not hold, such as the frequencies of rotary embeddings."""
    for name, buffer in list(model.named_buffers()):
        parent, _, last = name.rpartition(".")
        model.get_submodule(parent).register_buffer(last, torch.empty_like(buffer, device=device), persistent=False)
    # The parameters have no memory yet, so only buffers are written to.
    model.init_weights()
