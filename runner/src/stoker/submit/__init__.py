"""What a Python user writes: a run as a config, and its TrainJob."""

from __future__ import annotations

from stoker.frameworks.registry import (
    BrokenPlugin,
    broken_plugins,
    get_backend,
    get_registered_backends,
    register_backend,
    register_framework,
)
from stoker.submit.base import LLMBackend
from stoker.submit.initializer import Initializer, Source
from stoker.submit.torchtune import DataFormat, DataType, LoraConfig, Loss, TorchTuneConfig, TorchTuneInstructDataset
from stoker.submit.trl import TRLConfig
from stoker.submit.trl_adapter import TRLPeftConfig
from stoker.submit.trl_methods import (
    TRLDistillationConfig,
    TRLDPOConfig,
    TRLGRPOAsyncConfig,
    TRLGRPOConfig,
    TRLKTOConfig,
    TRLMethodConfig,
    TRLORPOConfig,
    TRLRewardConfig,
    TRLRLOOConfig,
    TRLSFTConfig,
    TRLTrainerType,
)

# Names in the KEP's second and newest text. They stand here because the classes need compat.py.
LLMTrainer = LLMBackend
ConfigTrainer = LLMBackend
FrameworkConfig = LLMBackend
TRLTrainer = TRLConfig
TorchTuneTrainer = TorchTuneConfig

__all__ = [
    "BrokenPlugin",
    "ConfigTrainer",
    "DataFormat",
    "DataType",
    "FrameworkConfig",
    "Initializer",
    "LLMBackend",
    "LLMTrainer",
    "LoraConfig",
    "Loss",
    "Source",
    "TRLConfig",
    "TRLDPOConfig",
    "TRLDistillationConfig",
    "TRLGRPOAsyncConfig",
    "TRLGRPOConfig",
    "TRLKTOConfig",
    "TRLMethodConfig",
    "TRLORPOConfig",
    "TRLPeftConfig",
    "TRLRLOOConfig",
    "TRLRewardConfig",
    "TRLSFTConfig",
    "TRLTrainer",
    "TRLTrainerType",
    "TorchTuneConfig",
    "TorchTuneInstructDataset",
    "TorchTuneTrainer",
    "broken_plugins",
    "get_backend",
    "get_registered_backends",
    "register_backend",
    "register_framework",
]
