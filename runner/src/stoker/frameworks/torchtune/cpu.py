"""Changes that let the recipes of TorchTune 0.6.1, written for GPUs, train on a CPU; one function for each reason.

A test (`cpu_cases.py`) fails when upstream no longer needs one of them.
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
    """Use gloo for a recipe's process group: LoRA, DPO and KD ask for NCCL, which a torch without CUDA lacks."""
    if not hasattr(recipe, "init_process_group"):
        return
    from torch.distributed import init_process_group

    def on_gloo(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        init_process_group("gloo", *args, **kwargs)

    vars(recipe)["init_process_group"] = on_gloo


def leave_out_memory_stats() -> None:
    """Skip measuring device memory: recipes do so after loading a model, and `get_memory_stats` raises on a CPU."""
    from torchtune import training

    vars(training)["get_memory_stats"] = lambda *_, **__: {}
    vars(training)["log_memory_stats"] = lambda *_, **__: None


def leave_out_device_cache() -> None:
    """Add the two functions that `cleanup_before_training` calls to `torch.cpu`; a CPU has no cache to empty."""
    import torch

    for name in ("empty_cache", "reset_peak_memory_stats"):
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, lambda *_: None)
