"""Train and serve in one Python API: TRL and PEFT train, vLLM generates, and the charts serve what was trained.

Names are loaded when they are used, so that importing this package loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.lab.config import LoRATrainConfig
    from stoker.lab.data import CausalLMCollator, CausalLMDataset, PreferenceCollator, PreferenceDataset
    from stoker.lab.engine.engine import TrainableEngine
    from stoker.lab.engine.loader import TrainableModelLoader
    from stoker.lab.errors import LabError
    from stoker.lab.evaluation import evaluate
    from stoker.lab.generation import Completion
    from stoker.lab.lora.injector import LoRAInjector
    from stoker.lab.lora.layers import TrainableLoRALinear
    from stoker.lab.losses import CausalLMLoss, DPOLoss
    from stoker.lab.policy import Policy
    from stoker.lab.ppo.config import RLHFConfig
    from stoker.lab.ppo.trainer import RLHF, RLHFTrainer
    from stoker.lab.trainer import LoRATrainer, Trained

# The module of each public name.
_MODULES = {
    "CausalLMCollator": "data",
    "CausalLMDataset": "data",
    "CausalLMLoss": "losses",
    "Completion": "generation",
    "DPOLoss": "losses",
    "LabError": "errors",
    "LoRAInjector": "lora.injector",
    "LoRATrainConfig": "config",
    "LoRATrainer": "trainer",
    "Policy": "policy",
    "PreferenceCollator": "data",
    "PreferenceDataset": "data",
    "RLHF": "ppo.trainer",
    "RLHFConfig": "ppo.config",
    "RLHFTrainer": "ppo.trainer",
    "TrainableEngine": "engine.engine",
    "TrainableLoRALinear": "lora.layers",
    "TrainableModelLoader": "engine.loader",
    "Trained": "trainer",
    "evaluate": "evaluation",
}

__all__ = [
    "RLHF",
    "CausalLMCollator",
    "CausalLMDataset",
    "CausalLMLoss",
    "Completion",
    "DPOLoss",
    "LabError",
    "LoRAInjector",
    "LoRATrainConfig",
    "LoRATrainer",
    "Policy",
    "PreferenceCollator",
    "PreferenceDataset",
    "RLHFConfig",
    "RLHFTrainer",
    "TrainableEngine",
    "TrainableLoRALinear",
    "TrainableModelLoader",
    "Trained",
    "evaluate",
]


def __getattr__(name: str) -> Any:
    """Load the module of a public name.

    Raises:
        AttributeError: there is no such name.
        LabError: it needs a package that is not installed here.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        from stoker.lab.machine import need

        need(error.name)
        raise
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, for completion in a notebook."""
    return sorted({*globals(), *_MODULES})
