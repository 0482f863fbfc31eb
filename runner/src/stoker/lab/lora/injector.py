"""Puts LoRA layers into a frozen model: one of transformers, or one of vLLM with its fused layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from stoker.lab.config import ALL_LINEAR, LoRATrainConfig
from stoker.lab.errors import LabError
from stoker.lab.lora import files
from stoker.lab.lora.fused import FusedLoRA, Part
from stoker.lab.lora.layers import LoRALinear, TrainableLoRALinear


class LoRAInjector:
    """Puts LoRA layers into a frozen model.

    Args:
        config: which layers get an adapter, and its rank, scale and dropout.
        shared: adapters of another model that holds the same weights, to use instead of new ones.

    Attributes:
        lora_layers: the adapters by the names that their layers have in a model of transformers.
    """

    def __init__(self, config: LoRATrainConfig, shared: Mapping[str, TrainableLoRALinear] | None = None) -> None:
        self.config = config
        self.lora_layers: dict[str, TrainableLoRALinear] = {}
        self._shared = shared
        self._base_model = ""

    def inject(self, model: nn.Module) -> nn.Module:
        """Freeze a model and give the layers that the config names their adapters.

        Args:
            model: of transformers, of vLLM, or any with `torch.nn.Linear` layers.

        Returns:
            The same model.

        Raises:
            LabError: the model has no such layers, or cannot share its adapters.
        """
        model.requires_grad_(False)
        self._base_model = str(getattr(model, "name_or_path", ""))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            # A list: the walk would enter what it has just put in.
            for name, module in list(model.named_modules()):
                if _of_vllm(module):
                    self._inject_fused(model, name, module)
                elif self._is_target(model, name, module):
                    lora = self._lora(name, module.in_features, module.out_features, module.weight)
                    model.set_submodule(name, LoRALinear(module, lora))
        self._check(model)
        return model

    def get_trainable_params(self) -> list[nn.Parameter]:
        """Return the adapters' parameters."""
        return [matrix for lora in self.lora_layers.values() for matrix in (lora.lora_a, lora.lora_b)]

    def save_lora(self, path: str | Path) -> None:
        """Write the adapters as PEFT does, for PEFT and vLLM."""
        files.write(path, self.lora_layers, self.config, self._base_model)

    def load_lora(self, path: str | Path) -> None:
        """Read adapters that PEFT or `save_lora` wrote.

        Raises:
            LabError: the files are missing, or belong to another model or config.
        """
        files.read(path, self.lora_layers, self._base_model)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Let the models be the base model for a while."""
        before = {name: lora.enabled for name, lora in self.lora_layers.items()}
        try:
            for lora in self.lora_layers.values():
                lora.enabled = False
            yield
        finally:
            for name, lora in self.lora_layers.items():
                lora.enabled = before[name]

    def _is_target(self, model: nn.Module, name: str, module: nn.Module) -> bool:
        if self.config.target_modules == ALL_LINEAR:
            head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
            return isinstance(module, nn.Linear) and module is not head
        if not self._named(name):
            return False
        if not isinstance(module, nn.Linear):
            raise LabError(
                f"LoRATrainConfig: target_modules names {name}, whose type is {type(module).__name__}, not a linear "
                "layer: name linear layers only"
            )
        return True

    def _named(self, name: str) -> bool:
        targets = self.config.target_modules
        return targets == ALL_LINEAR or any(name == target or name.endswith(f".{target}") for target in targets)

    def _inject_fused(self, model: nn.Module, name: str, module: nn.Module) -> None:
        from stoker.lab.lora.vllm_method import LoRALinearMethod

        parts, first = [], 0
        for part, outputs in parts_of(model, name, module):
            if self._named(part):
                lora = self._lora(part, module.input_size, outputs, module.weight)
                if (own := module.weight.shape[1]) != module.input_size:  # the inputs are cut over ranks
                    lora.lora_a = nn.Parameter(lora.lora_a.detach().split(own, 1)[module.tp_rank].clone())
                parts.append(Part(part, lora, first))
            first += outputs
        if parts:
            module.lora = FusedLoRA(parts)
            module.quant_method = LoRALinearMethod(module.quant_method, module.lora)

    def _lora(self, name: str, inputs: int, outputs: int, weight: torch.Tensor) -> TrainableLoRALinear:
        if self._shared is not None:
            if name not in self._shared:
                raise LabError(
                    f"{name} has no adapter in the engine, where its layer has another name or is not linear: leave it "
                    "out of target_modules"
                )
            lora = self._shared[name]
        else:
            config = self.config
            lora = TrainableLoRALinear(inputs, outputs, config.rank, config.alpha, config.dropout)
            # Half precision would lose what a small learning rate adds.
            dtype = torch.float32 if weight.dtype in (torch.float16, torch.bfloat16) else weight.dtype
            lora.to(device=weight.device, dtype=dtype)
        self.lora_layers[name] = lora
        return lora

    def _check(self, model: nn.Module) -> None:
        if not self.lora_layers:
            found = sorted({name.rpartition(".")[2] for name, module in model.named_modules() if _linear(module)})
            raise LabError(
                f"LoRATrainConfig: target_modules is {self.config.target_modules!r}, but {type(model).__name__} has no "
                f"such layers: choose from {', '.join(found) or 'another model: it has no linear layers'}"
            )
        if self._shared is not None and (missing := sorted(self._shared.keys() - self.lora_layers.keys())):
            raise LabError(
                f"{type(model).__name__} has no layer {missing[0]}, which has an adapter in the engine: leave it out "
                "of target_modules"
            )


def parts_of(model: nn.Module, name: str, module: nn.Module) -> list[tuple[str, int]]:
    """Return the layers that a layer of vLLM was fused from, by the names that they have unfused.

    Args:
        model: the model of vLLM.
        name: the layer's name in it.
        module: the layer.

    Returns:
        Each part's name and number of outputs (on this rank), in the order of the fused layer's outputs.
    """
    parent, _, last = name.rpartition(".")
    sizes = list(module.output_partition_sizes)
    names = getattr(model, "packed_modules_mapping", {}).get(last, [last])
    if len(names) != len(sizes):  # fused by the checkpoint already
        names, sizes = [last], [sum(sizes)]
    return [(f"{parent}.{part}" if parent else part, size) for part, size in zip(names, sizes, strict=True)]


def _of_vllm(module: nn.Module) -> bool:
    """Return whether this is a linear layer of vLLM; its embeddings and output layers look like one."""
    return hasattr(module, "output_partition_sizes") and not hasattr(module, "num_embeddings_padded")


def _linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or _of_vllm(module)
