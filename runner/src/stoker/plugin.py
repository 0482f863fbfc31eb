"""The one public face for plugin authors: everything that another training framework needs of Stoker.

docs/reference/plugin.md says what each name is for; `examples/backend-plugin` uses nothing else.
"""

from __future__ import annotations

from stoker.contract.exits import ExitCode, RunError
from stoker.frameworks import Framework
from stoker.plan.arguments import Flag, FlagTable, Layer, Setting, resolve, split_args
from stoker.plan.inputs import DatasetColumns, Input, ModelFolder
from stoker.plan.interfaces import (
    Asked,
    Command,
    ConfigFile,
    Dataset,
    Decision,
    Estimator,
    FlagNames,
    Options,
    TrainingFramework,
)
from stoker.rank.checkpoints import seal
from stoker.rank.job import Job, Outcome, StopRequested, any_rank, barrier
from stoker.submit import LLMBackend, register_backend, register_framework
from stoker.submit.initializer import DATASET, MODEL, Initialized, dataset_folder

__all__ = [
    "DATASET",
    "MODEL",
    "Asked",
    "Command",
    "ConfigFile",
    "Dataset",
    "DatasetColumns",
    "Decision",
    "Estimator",
    "ExitCode",
    "Flag",
    "FlagNames",
    "FlagTable",
    "Framework",
    "Initialized",
    "Input",
    "Job",
    "LLMBackend",
    "Layer",
    "ModelFolder",
    "Options",
    "Outcome",
    "RunError",
    "Setting",
    "StopRequested",
    "TrainingFramework",
    "any_rank",
    "barrier",
    "dataset_folder",
    "register_backend",
    "register_framework",
    "resolve",
    "seal",
    "split_args",
]
