"""TorchTune: its methods, keys and packages, and the three interfaces of a training framework."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from stoker.frameworks.torchtune.check import TorchTuneChecker
from stoker.frameworks.torchtune.decide import TorchTuneDecider
from stoker.frameworks.torchtune.keys import RECIPES, recipe_of
from stoker.frameworks.torchtune.read import TorchTuneReader
from stoker.frameworks.torchtune.resume import FREE
from stoker.plan.arguments import FlagTable
from stoker.plan.interfaces import Asked, FlagNames, TrainingFramework

# The config whose keys `stoker flags` lists for a method.
_EXAMPLE = {"lora_dpo": "llama3_1/8B", "full_dpo": "llama3_1/8B", "kd": "llama3_2/8B_to_1B"}


class TorchTune(TorchTuneReader, TorchTuneDecider, TorchTuneChecker, TrainingFramework):
    """Fine-tuning with TorchTune's own recipes."""

    name: ClassVar[str] = "torchtune"
    methods: ClassVar[tuple[str, ...]] = tuple(RECIPES)
    training: ClassVar[str] = "stoker.frameworks.torchtune.trainer"
    packages: ClassVar[tuple[str, ...]] = ("torch", "torchtune", "torchao", "torchdata", "datasets")
    has_configs: ClassVar[bool] = True
    flag_names: ClassVar[FlagNames] = FlagNames(
        batch_size="batch_size", length="tokenizer.max_seq_len", split="dataset.split"
    )

    # Its recipes for several processes always shard.
    shardings: ClassVar[tuple[str, ...]] = ("full",)
    free_settings: ClassVar[tuple[str, ...]] = FREE

    def flag_table(self, method: str) -> FlagTable:
        """Return the keys of one of the method's configs."""
        return self.options(Asked(method, config=_EXAMPLE.get(method, "llama3_2/1B"))).table

    def bound_flags(self, method: str, other: str) -> Collection[str]:
        """Return the learning rate: TorchTune's configs have another one for each method."""
        return ("optimizer.lr",)

    def trainer_module(self, method: str, world_size: int = 1) -> str:
        """Return the method's recipe for a world of this size."""
        return recipe_of(method, world_size)
