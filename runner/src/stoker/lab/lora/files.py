"""Adapters as the files that PEFT and vLLM read, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from stoker.contract.exits import ExitCode
from stoker.lab.config import LoRATrainConfig
from stoker.lab.errors import refuse
from stoker.lab.lora.layers import TrainableLoRALinear
from stoker.lab.machine import origin_problems
from stoker.serve.adapters.files import read_adapter

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"

# What PEFT puts before the name of a layer.
_PREFIX = "base_model.model."
# Kinds of LoRA that these layers do not compute, with the value that turns them off.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_rslora": (False, None),
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "lora_bias": (False, None),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
}


def write(
    folder: str | Path, layers: Mapping[str, TrainableLoRALinear], config: LoRATrainConfig, base_model: str
) -> None:
    """Write adapters as PEFT does.

    Args:
        folder: gets the files; it is made if it is not there.
        layers: the adapters by the names of their layers.
        config: what they were made from.
        base_model: name or path of the model that they belong to.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    targets = config.target_modules
    description = {
        "base_model_name_or_path": base_model,
        "bias": "none",
        "inference_mode": True,
        "lora_alpha": config.alpha,
        "lora_dropout": config.dropout,
        "peft_type": "LORA",
        "r": config.rank,
        "target_modules": sorted(_last_parts(layers) if isinstance(targets, str) else targets),
        "task_type": "CAUSAL_LM",
    }
    (folder / CONFIG).write_text(json.dumps(description, indent=2) + "\n")
    save_file({key: tensor.detach().contiguous() for key, tensor in _tensors(layers)}, folder / WEIGHTS)


def read(folder: str | Path, layers: Mapping[str, TrainableLoRALinear], base_model: str = "") -> None:
    """Read files of PEFT into adapters, which keep their place in memory.

    Args:
        folder: has the files.
        layers: the adapters by the names of their layers.
        base_model: name or path of the model that they belong to; empty if it is not known.

    Raises:
        LabError: the files are missing or damaged, hold another kind of adapter, or one of another model.
    """
    folder = Path(folder)
    refuse(f"{folder} has no {name}: name the folder of an adapter" for name in (CONFIG, WEIGHTS) if not
           (folder / name).is_file())  # fmt: skip
    damage = read_adapter(folder).damage
    refuse((f"the adapter {folder} is damaged: {flaw}: write one that is whole" for flaw in damage), ExitCode.BAD_DATA)
    description = json.loads((folder / CONFIG).read_text())
    own = dict(_tensors(layers))
    saved = load_file(folder / WEIGHTS)
    refuse(
        [
            *origin_problems(folder, base_model),
            *_unknown_kind(folder, description, layers),
            *_other_layers(folder, own, saved),
        ]
    )
    with torch.no_grad():
        for key, tensor in own.items():
            tensor.copy_(saved[key])


def _tensors(layers: Mapping[str, TrainableLoRALinear]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, lora in layers.items():
        yield f"{_PREFIX}{name}.lora_A.weight", lora.lora_a
        yield f"{_PREFIX}{name}.lora_B.weight", lora.lora_b


def _last_parts(layers: Mapping[str, TrainableLoRALinear]) -> set[str]:
    return {name.rpartition(".")[2] for name in layers}


def _unknown_kind(
    folder: Path, description: Mapping[str, Any], layers: Mapping[str, TrainableLoRALinear]
) -> Iterator[str]:
    for name, plain in _PLAIN.items():
        if name in description and description[name] not in plain:
            yield f"{folder / CONFIG}: {name} is {description[name]!r}: these layers read plain LoRA only"
    scaling = next(iter(layers.values())).scaling
    rank, alpha = description.get("r", 0), description.get("lora_alpha", 0)
    if not rank or alpha / rank != scaling:
        yield (
            f"{folder / CONFIG}: r is {rank} and lora_alpha {alpha}, but the layers scale by {scaling}: "
            "make them with the rank and alpha of the adapter"
        )


def _other_layers(folder: Path, own: Mapping[str, torch.Tensor], saved: Mapping[str, torch.Tensor]) -> Iterator[str]:
    where = folder / WEIGHTS
    remedy = "take an adapter of this base model with the same rank and target_modules"
    if own.keys() != saved.keys():
        (other, *_) = sorted(own.keys() ^ saved.keys())
        whose = "is not in the model" if other in saved else "is not there"
        yield f"{where}: {len(saved)} tensors where the model has {len(own)}; {other} {whose}: {remedy}"
        return
    for key, tensor in own.items():
        if tensor.shape != saved[key].shape:
            yield f"{where}: {key} is {list(saved[key].shape)}, but the model needs {list(tensor.shape)}: {remedy}"
            return
