"""All weights of a model, copied within the step, and what has changed since the version before.

Only training processes import this module, because it imports torch.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import torch

from stoker.frameworks.trl.asynchronous.snapshot import named, whole
from stoker.serve.weights import in_vllm
from stoker.serve.weights.files import CHECKSUMS, TENSORS

# Elements of each tensor that are looked at to know how large weights are.
_SAMPLED = 1024
# A step moves a weight by about the learning rate, with Adam by a few times as much at most.
_FARTHEST = 4.0
# All of the weights, or none of those that moved before.
_ALL, _FEW = 0.99, 1 / 20
_REMEMBERED = 32


@dataclass(frozen=True, slots=True)
class TensorChange:
    """What differs between two versions of the same model.

    Attributes:
        tensors: as they are in a file.
        bytes: of the file, about.
        share: of the elements that have changed.
        doubt: why that is not plausible; empty if it is.
    """

    tensors: Mapping[str, torch.Tensor]
    bytes: int
    share: float
    doubt: str

    @property
    def numbers(self) -> Mapping[str, float]:
        """The share, for the metrics."""
        return {"changed": self.share}


class Plausible:
    """Doubts changes of weights that the steps between two versions do not explain."""

    def __init__(self) -> None:
        self._shares: deque[float] = deque(maxlen=_REMEMBERED)

    def doubt(self, share: float, way: float, movable: float, kind: torch.dtype) -> str:
        """Return why a change is not plausible; empty if it is.

        Args:
            share: of the elements that have changed.
            way: the sum of the learning rates of the steps with a gradient, since the version before.
            movable: share of the elements that are small enough for such a way to change them in this type.
            kind: the type of the weights.
        """
        earlier = [*self._shares]
        self._shares.append(share)
        name = str(kind).removeprefix("torch.")
        if way > 0 and share == 0:
            return (
                f"no weight has changed since the version before, though the learning rates add up to {way:.2g}: steps "
                f"as small as these are lost in {name}; raise --learning_rate, or train in --dtype float32"
            )
        if kind.itemsize < 4 and share > _ALL and movable < 0.5:
            return (
                f"{share:.0%} of the weights have changed since the version before, but the learning rates add up to "
                f"{way:.2g}, which can change {movable:.0%} of them in {name}: look for what else writes to the weights"
            )
        if len(earlier) >= 4 and way > 0 and share < _FEW * median(earlier):
            return (
                f"{share:.2%} of the weights have changed since the version before, and {median(earlier):.2%} of them "
                "in the versions before that: look for weights that are no longer trained"
            )
        return ""


@dataclass
class TensorSnapshot:
    """All weights of a version, in host memory.

    Attributes:
        tensors: by their names in a checkpoint.
        way: the sum of the learning rates of the steps with a gradient, since the run or this attempt of it began.
        plausible: doubts changes.
    """

    tensors: Mapping[str, torch.Tensor]
    way: float = 0.0
    plausible: Plausible = field(default_factory=Plausible)

    @cached_property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @cached_property
    def checksums(self) -> dict[str, str]:
        """The checksum of each tensor."""
        return in_vllm.checksums(dict(self.tensors))

    def since(self, earlier: TensorSnapshot) -> TensorChange:
        """Return what has changed since an earlier version of the same model."""
        with ThreadPoolExecutor(in_vllm.THREADS) as threads:
            parts = threads.map(lambda name: in_vllm.change(earlier.tensors[name], self.tensors[name]), self.tensors)
            found = dict(zip(self.tensors, parts, strict=True))
        tensors = {f"{name}{end}": tensor for name, (part, _) in found.items() for end, tensor in part.items()}
        elements = sum(tensor.numel() for tensor in self.tensors.values())
        share = sum(changed for _, changed in found.values()) / max(1, elements)
        kind = max(self.tensors.values(), key=torch.Tensor.numel).dtype
        way = self.way - earlier.way
        doubt = self.plausible.doubt(share, way, self._movable(way), kind)
        return TensorChange(tensors, sum(tensor.nbytes for tensor in tensors.values()), share, doubt)

    def write(self, folder: Path, name: str, earlier: str = "", change: TensorChange | None = None) -> None:
        """Write checksums and tensors: all, or only what has changed.

        Args:
            folder: where to.
            name: of this version.
            earlier: name of the version that the change is to.
            change: what has changed; None for all.
        """
        from safetensors.torch import save_file

        with ThreadPoolExecutor(1) as beside:  # the disk is at work while processors compute
            checksums = beside.submit(lambda: self.checksums)
            save_file(dict(self.tensors if change is None else change.tensors), folder / TENSORS)
        listed = {"schemaVersion": in_vllm.SCHEMA_VERSION, "name": name, "earlier": earlier}
        listed["checksums"] = checksums.result()
        (folder / CHECKSUMS).write_text(json.dumps(listed, indent=1, sort_keys=True))

    def _movable(self, way: float) -> float:
        """Return the share of the elements that a way can change: those it moves by half of a last digit or more."""
        small = total = 0
        for tensor in self.tensors.values():
            if tensor.is_floating_point():
                flat = tensor.reshape(-1)
                some = flat[:: max(1, flat.numel() // _SAMPLED)].abs().float()
                small += (
                    int((some * torch.finfo(tensor.dtype).eps / 4 <= _FARTHEST * way).sum()) * flat.numel() // len(some)
                )
                total += flat.numel()
        return small / max(1, total)


def weights_of(model: Any, way: float, plausible: Plausible, *, keep: bool) -> TensorSnapshot | None:
    """Copy all weights to host memory.

    Every rank must call this at the same point, because the parts of a shared model are put together.

    Args:
        model: the model.
        way: as in `TensorSnapshot`.
        plausible: doubts changes; the same for all versions of a run.
        keep: False on ranks that only help with their parts.
    """
    # Of weights that two modules share, the first name; vLLM expects them as it does in a checkpoint.
    found: dict[str, torch.Tensor] = {}
    for name, parameter in named(model):
        tensor = whole(parameter, copy=keep)
        if keep:
            found[name] = tensor
    return TensorSnapshot(_as_saved(model, found), way, plausible) if keep else None


def _as_saved(model: Any, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return weights as a checkpoint of the model has them: transformers fuses the experts of some models."""
    from transformers.core_model_loading import revert_weight_conversion

    return {name: tensor.contiguous() for name, tensor in revert_weight_conversion(model, tensors).items()}
