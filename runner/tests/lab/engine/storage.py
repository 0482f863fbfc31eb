"""Whose memory a model's parameters lie in. Imported by scripts in an environment with torch."""

from __future__ import annotations

from torch import nn


def outside(model: nn.Module, engine_model: nn.Module) -> list[str]:
    """Return a training model's parameters that are not in the engine's memory."""
    owned = []
    for tensor in [*engine_model.parameters(), *engine_model.buffers()]:
        storage = tensor.untyped_storage()
        owned.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
    found = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = parameter.data_ptr()
        last = first + parameter.numel() * parameter.element_size()
        if not any(start <= first and last <= end for start, end in owned):
            found.append(name)
    return found
