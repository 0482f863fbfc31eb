"""What a plugin for another training framework imports: one public face for authors.

`examples/backend-plugin` is built on these names alone.
"""

from __future__ import annotations

from stoker.contract.exits import ExitCode, RunError
from stoker.frameworks import Framework
from stoker.plan.arguments import Flag, FlagTable, Layer, Setting, resolve, split_args
from stoker.plan.framework import (
    Asked,
    Checker,
    Command,
    ConfigFile,
    Decider,
    Decision,
    FlagNames,
    Options,
    Reader,
    TrainingFramework,
)
from stoker.plan.inputs import DatasetColumns, Input, ModelFolder
from stoker.rank.job import Job, Outcome, StopRequested
from stoker.submit import LLMBackend, register_backend, register_framework
from stoker.submit.initializer import DATASET, MODEL, Initialized, dataset_folder

__all__ = [
    "DATASET",
    "MODEL",
    "Asked",
    "Checker",
    "Command",
    "ConfigFile",
    "DatasetColumns",
    "Decider",
    "Decision",
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
    "Reader",
    "RunError",
    "Setting",
    "StopRequested",
    "TrainingFramework",
    "dataset_folder",
    "register_backend",
    "register_framework",
    "resolve",
    "split_args",
]
