"""What TorchTune as it comes cannot do on a CPU: `python cpu_cases.py` prints the cases that still fail, as JSON.

Runs in an environment with TorchTune. Each case is what one function of `stoker.frameworks.torchtune.cpu` mends.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torchtune
from torchtune import training

RECIPES = Path(torchtune.__file__).parent.parent / "recipes"


def nccl_group() -> None:
    """A group as the LoRA, DPO and KD recipes ask for it."""
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    for recipe in ("lora_finetune_distributed", "lora_dpo_distributed", "knowledge_distillation_distributed"):
        if 'init_process_group("cuda:nccl,cpu:gloo")' not in (RECIPES / f"{recipe}.py").read_text():
            return
    torch.distributed.init_process_group("cuda:nccl,cpu:gloo")
    torch.distributed.destroy_process_group()


def memory_stats() -> None:
    """What the recipes do after a model was loaded."""
    training.log_memory_stats(training.get_memory_stats(device=torch.device("cpu")))


def device_cache() -> None:
    """What the recipes do before the first step."""
    training.cleanup_before_training()


def main() -> None:
    """Run the cases."""
    cases: tuple[Callable[[], None], ...] = (nccl_group, memory_stats, device_cache)
    failed = {}
    for case in cases:
        try:
            case()
        except Exception as error:  # noqa: BLE001 - whatever it is, the case fails
            failed[case.__name__] = f"{type(error).__name__}: {error}"
    print(json.dumps(failed))


if __name__ == "__main__":
    main()
