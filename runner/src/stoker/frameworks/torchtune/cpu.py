"""What TorchTune 0.6.1 needs to train on a CPU: its recipes were written for GPUs. One function for each reason.

A test (`cpu_cases.py`) fails for each that upstream no longer needs.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any


def apply(recipe: ModuleType) -> None:
    """Let a loaded recipe train on a CPU."""
    use_gloo_alone(recipe)
    leave_out_memory_stats()
    leave_out_device_cache()


def use_gloo_alone(recipe: ModuleType) -> None:
    """Make the process group of a recipe on gloo: LoRA, DPO and KD ask for NCCL, which a torch without CUDA lacks."""
    if not hasattr(recipe, "init_process_group"):
        return
    from torch.distributed import init_process_group

    def on_gloo(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        init_process_group("gloo", *args, **kwargs)

    vars(recipe)["init_process_group"] = on_gloo


def leave_out_memory_stats() -> None:
    """Measure no device memory: the recipes do so after loading a model, and `get_memory_stats` raises on a CPU."""
    from torchtune import training

    vars(training)["get_memory_stats"] = lambda *_, **__: {}
    vars(training)["log_memory_stats"] = lambda *_, **__: None


def leave_out_device_cache() -> None:
    """Give `torch.cpu` the two functions of `torch.cuda` that `cleanup_before_training` calls; a CPU has no cache."""
    import torch

    for name in ("empty_cache", "reset_peak_memory_stats"):
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, lambda *_: None)
