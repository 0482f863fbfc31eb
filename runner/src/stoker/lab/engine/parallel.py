"""A model of views whose weights are cut over ranks, as tensor parallelism of the engine cuts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from stoker.lab.errors import LabError
from stoker.lab.lora.injector import parts_of
from stoker.lab.lora.layers import TrainableLoRALinear


class _Copy(torch.autograd.Function):
    """The same input on each rank: gradients are summed up."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        grad = grads[0].contiguous().clone()
        dist.all_reduce(grad)
        return grad


class _Sum(torch.autograd.Function):
    """Parts of an output are summed up: each rank has the whole gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        total = x.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0]


class _Gather(torch.autograd.Function):
    """Columns of an output are put side by side: each rank has the gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.columns = x.shape[-1]
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        first = dist.get_rank() * ctx.columns
        return grads[0][..., first : first + ctx.columns].contiguous()


class Shards:
    """Lets a model of views compute on all ranks what it would compute on one.

    Args:
        model: the model of views, with its adapters.
        engine_model: the model of vLLM on this rank.
        lora_layers: the adapters by the names of their layers.

    Raises:
        LabError: the model has fewer key and value heads than there are ranks.
    """

    def __init__(self, model: Any, engine_model: nn.Module, lora_layers: Mapping[str, TrainableLoRALinear]) -> None:
        self._layers = lora_layers
        self._by_rows: set[str] = set()
        for name, module in engine_model.named_modules():
            if hasattr(module, "num_embeddings_padded"):
                _embedding(model, name, module)
            elif hasattr(module, "output_partition_sizes"):
                if getattr(module, "num_kv_head_replicas", 1) > 1:
                    raise LabError(
                        f"TrainableEngine: {name} has fewer key and value heads than there are ranks: lower "
                        "tensor_parallel_size"
                    )
                by_rows = module.weight.shape[1] != module.input_size
                for part, _ in parts_of(engine_model, name, module):
                    _linear(model.get_submodule(part), by_rows)
                    if by_rows:
                        self._by_rows.add(part)
        model.get_output_embeddings().register_forward_pre_hook(lambda _, args: (_Copy.apply(args[0]), *args[1:]))
        vocabulary = model.config.vocab_size
        model.get_output_embeddings().register_forward_hook(
            lambda _, args, output: _Gather.apply(output)[..., :vocabulary]
        )

    def gradient_norm(self) -> torch.Tensor:
        """Sum up the gradients of what each rank has whole, and return the length of all gradients."""
        whole = [matrix for name, lora in self._layers.items() for matrix in self._pair(name, lora)[:1]]
        cut = [matrix for name, lora in self._layers.items() for matrix in self._pair(name, lora)[1:]]
        for matrix in whole:
            dist.all_reduce(matrix.grad)
        square = nn.utils.get_total_norm([matrix.grad for matrix in cut if matrix.grad is not None]).square()
        dist.all_reduce(square)
        rest = nn.utils.get_total_norm([matrix.grad for matrix in whole if matrix.grad is not None]).square()
        return (square + rest).sqrt()

    def whole_layers(self) -> dict[str, TrainableLoRALinear]:
        """Return copies of the adapters as they would be on one rank."""
        found = {}
        for name, lora in self._layers.items():
            own = self._pair(name, lora)[1].detach().contiguous()
            parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, own)
            a, b = lora.lora_a.detach(), lora.lora_b.detach()
            a, b = (torch.cat(parts, 1), b) if name in self._by_rows else (a, torch.cat(parts))
            copy = TrainableLoRALinear(a.shape[1], b.shape[0], lora.rank)
            copy.scaling, copy.lora_a, copy.lora_b = lora.scaling, nn.Parameter(a.clone()), nn.Parameter(b.clone())
            found[name] = copy
        return found

    def take(self, whole: Mapping[str, TrainableLoRALinear]) -> None:
        """Give the adapters the values of whole ones."""
        with torch.no_grad():
            for name, lora in self._layers.items():
                for own, other in ((lora.lora_a, whole[name].lora_a), (lora.lora_b, whole[name].lora_b)):
                    for axis in (0, 1):
                        if own.shape[axis] != other.shape[axis]:
                            other = other.split(own.shape[axis], axis)[dist.get_rank()]
                    own.copy_(other)

    def _pair(self, name: str, lora: TrainableLoRALinear) -> tuple[nn.Parameter, nn.Parameter]:
        """Return the matrix that each rank has whole, and the one that is cut."""
        return (lora.lora_b, lora.lora_a) if name in self._by_rows else (lora.lora_a, lora.lora_b)


def _linear(layer: nn.Module, by_rows: bool) -> None:
    if not by_rows:
        layer.register_forward_pre_hook(lambda _, args: (_Copy.apply(args[0]), *args[1:]))
        return
    own = getattr(layer, "base_layer", layer)
    if own.bias is not None and dist.get_rank():
        own.register_parameter("bias", None)  # added once
    layer.register_forward_hook(lambda _, args, output: _Sum.apply(output))


def _embedding(model: Any, name: str, module: Any) -> None:
    layer = model.get_submodule(name)
    if layer is model.get_output_embeddings():
        return
    rows = module.weight.shape[0]
    first = dist.get_rank() * rows
    elsewhere: list[torch.Tensor] = []

    def to_own(_: nn.Module, args: Any) -> Any:
        own = args[0] - first
        elsewhere.append((own < 0) | (own >= rows))
        return (own.clamp(0, rows - 1), *args[1:])

    def to_all(_: nn.Module, args: Any, output: torch.Tensor) -> Any:
        return _Sum.apply(output.masked_fill(elsewhere.pop()[..., None], 0))

    layer.register_forward_pre_hook(to_own)
    layer.register_forward_hook(to_all)
