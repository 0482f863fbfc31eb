"""Copies of what is trained: one to publish, and some in this process, to score samples with what wrote them.

Only training processes import this module, because it imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import _CHECKPOINT_PREFIX
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from stoker.contract.manifest import ADAPTER_WEIGHTS

# A version that is no copy: the base model without its adapter.
BASE = -1


def adapter_of(model: Any) -> Callable[[Path], None]:
    """Copy an adapter to host memory, and return what writes the copy into a folder.

    Every rank must call this at the same point, because the parts of a shared adapter are put together. The writing
    needs no other rank and may happen in a thread.

    Args:
        model: a `peft.PeftModel`.
    """
    from peft import get_peft_model_state_dict

    trained = {name: parameter for name, parameter in named(model) if parameter.requires_grad}
    saved = get_peft_model_state_dict(model, state_dict=trained, save_embedding_layers=False)
    copies = {name: whole(tensor) for name, tensor in saved.items()}
    config = deepcopy(model.peft_config[model.active_adapter])
    # PEFT marks a saved adapter as one that is not trained further.
    config.inference_mode = True

    def write(folder: Path) -> None:
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        save_file(copies, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        config.save_pretrained(str(folder))

    return write


def named(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a model's parameters by the names that they have without what is put around modules to train them.

    FSDP's own recomputing puts a module around each layer, and compiling one around the model or its layers.
    """
    for name, parameter in model.named_parameters():
        yield name.replace(_CHECKPOINT_PREFIX, "").replace("_orig_mod.", ""), parameter


def whole(tensor: torch.Tensor, *, copy: bool = True) -> torch.Tensor:
    """Return a tensor as a whole, copied to host memory. Every rank must call this, because ranks may share it.

    Args:
        tensor: the tensor, or this rank's part of it.
        copy: False on ranks that only give their parts.
    """
    tensor = tensor.detach()
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    # `to` alone would give a tensor on a CPU itself, which the next step changes.
    return tensor.to("cpu", copy=True).contiguous() if copy else tensor


class Copies:
    """This rank's part of some versions of what is trained, in host memory.

    Args:
        model: its trained weights are copied: the adapter of a `peft.PeftModel`, or all of them.
        most: the most copies there are; the oldest goes first.

    Attributes:
        adapted: the model has an adapter, so that there is a base model without it.
        scarce: there is not a copy of every version.
    """

    def __init__(self, model: Any, most: int | None = None) -> None:
        self._model, self._most = model, most
        _reshard(model)
        self.adapted = hasattr(model, "peft_config")
        self.scarce = most is not None
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._kept: dict[int, list[torch.Tensor]] = {}

    @property
    def versions(self) -> list[int]:
        """The versions there are copies of, newest first."""
        return sorted(self._kept, reverse=True)

    def keep(self, version: int) -> None:
        """Copy what is trained as it is now."""
        if self._most is not None:
            for old in self.versions[self._most - 1 :]:
                del self._kept[old]
        self._kept[version] = [_local(parameter).to("cpu", copy=True) for parameter in self._trained]

    def drop_before(self, version: int, needed: Collection[int] = ()) -> None:
        """Drop the copies of older versions, except those that are needed."""
        for old in [kept for kept in self._kept if kept < version and kept not in needed]:
            del self._kept[old]

    @contextmanager
    def worn(self, version: int) -> Iterator[None]:
        """Let the model be an earlier version of itself; `BASE` for the base model."""
        if version == BASE:
            with self._model.disable_adapter():
                yield
            return
        with torch.no_grad():
            present = [_local(parameter).to("cpu", copy=True) for parameter in self._trained]
            self._put(self._kept[version])
            try:
                yield
            finally:
                self._put(present)

    def _put(self, tensors: list[torch.Tensor]) -> None:
        _reshard(self._model)
        for parameter, tensor in zip(self._trained, tensors, strict=True):
            _local(parameter).copy_(tensor)


def _reshard(model: Any) -> None:
    """Let go of weights that FSDP has gathered, so that the next forward sees what is written to the parts.

    After a forward without a backward, FSDP2 keeps those of the outermost module: embeddings, last norm and head.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _local(parameter: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a parameter that ranks may share."""
    detached = parameter.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached
