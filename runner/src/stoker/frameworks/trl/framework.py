"""TRL: its methods, flags and packages, and the three interfaces of a training framework."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

from stoker.frameworks import command_line
from stoker.frameworks.trl.check import TRLChecker
from stoker.frameworks.trl.decide import TRLDecider
from stoker.frameworks.trl.flags import METHODS, flag_table
from stoker.frameworks.trl.former_flags import METHODS_GONE
from stoker.frameworks.trl.read import TRLReader, module_of
from stoker.frameworks.trl.resume import FREE
from stoker.plan.arguments import FlagTable
from stoker.plan.interfaces import FlagNames, TrainingFramework


class TRL(TRLReader, TRLDecider, TRLChecker, TrainingFramework):
    """Fine-tuning with TRL's own scripts (`trl.scripts.<method>`)."""

    name: ClassVar[str] = "trl"
    methods: ClassVar[tuple[str, ...]] = METHODS
    methods_gone: ClassVar[Mapping[str, str]] = METHODS_GONE
    training: ClassVar[str] = "stoker.frameworks.trl.trainer"
    packages: ClassVar[tuple[str, ...]] = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
    secrets: ClassVar[tuple[str, ...]] = ("hub_token",)
    flag_names: ClassVar[FlagNames] = command_line.FLAG_NAMES
    shardings: ClassVar[tuple[str, ...]] = ("none", "full")
    free_settings: ClassVar[tuple[str, ...]] = FREE
    node_settings: ClassVar[tuple[str, ...]] = ("activation_checkpointing", "tf32")

    def flag_table(self, method: str) -> FlagTable:
        """Return the flags of the method's script, as generated from its parser."""
        return flag_table(method)

    def bound_flags(self, method: str, other: str) -> Collection[str]:
        """Return the flags, such as the learning rate, for which TRL has other defaults in the other method."""
        ours, theirs = (flag_table(name).flags for name in (method, other))
        return {name for name in {*ours} & {*theirs} if ours[name].default != theirs[name].default}

    def trainer_module(self, method: str, world_size: int = 1) -> str:
        """Return TRL's script for the method, or Stoker's if TRL has none."""
        return module_of(method)
