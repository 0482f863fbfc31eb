"""What the runner must know of the trainer to plan, launch and guard a run of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from stoker.plugin import (
    Asked,
    Command,
    ConfigFile,
    Dataset,
    Decision,
    FlagNames,
    FlagTable,
    Input,
    Options,
    Setting,
    TrainingFramework,
    split_args,
)
from stoker_classifier.flags import TABLE

MODULE = "stoker_classifier.train"
# A checkpoint made with another value of these is of another model.
_IDENTITY = ("model_name_or_path", "dataset_name", "dataset_train_split", "text_column", "label_column", "max_length")


class Classifier(TrainingFramework):
    """Text classification with transformers' Trainer."""

    name: ClassVar[str] = "classifier"
    methods: ClassVar[tuple[str, ...]] = (TABLE.method,)
    # The trainer is transformers' own, so Stoker's stop, resume, guard and progress work as they do for TRL.
    training: ClassVar[str] = "stoker.training.transformers"
    packages: ClassVar[tuple[str, ...]] = ("torch", "transformers", "datasets")
    flag_names: ClassVar[FlagNames] = FlagNames(
        batch_size="--per_device_train_batch_size",
        length="--max_length",
        kept_checkpoints="--save_total_limit",
        split="--dataset_train_split",
    )

    def flag_table(self, method: str) -> FlagTable:
        """Return the trainer's flags."""
        return TABLE

    def trainer_module(self, method: str, world_size: int = 1) -> str:
        """Return the trainer's module."""
        return MODULE

    # Read: what the user wrote.

    def read(self, args: Sequence[str]) -> Command:
        """Read flags; the first word may be the trainer's module."""
        is_named = [*args[:1]] == [MODULE]
        values, problems = split_args(args[1:] if is_named else args)
        if values.pop("config", None) is not None:
            problems.append("the trainer has no --config: write its flags")
        return Command(TABLE.method if is_named else None, None, values, tuple(problems))

    def read_config(self, named: str, content: Mapping[str, Any] | None) -> ConfigFile:
        """Return nothing: the trainer has no config files."""
        return ConfigFile()

    # Decide: what is run.

    def options(self, asked: Asked) -> Options:
        """Return the trainer's flags, and defaults: the output folder, and the CPU where there is nothing else."""
        recipe = {"output_dir": (f"{asked.workspace}/output", "the run's folder in the workspace")}
        if asked.accelerator == "cpu":
            recipe["use_cpu"] = ("true", "the runtime has no accelerator")
        return Options(TABLE.method, TABLE, recipe)

    def decide(self, asked: Asked, table: FlagTable, settings: Mapping[str, Setting]) -> Decision:
        """Return the command line, and what the run reads, trains and must have in common with its checkpoints."""
        model, data = (str(settings[name].value) for name in ("model_name_or_path", "dataset_name"))
        split = str(_value(settings, "dataset_train_split"))
        steps, epochs = (float(str(_value(settings, name))) for name in ("max_steps", "num_train_epochs"))
        identity = {name: settings[name].value for name in _IDENTITY if name in settings}
        return Decision(
            module=MODULE,
            argv=tuple(word for setting in settings.values() for word in setting.to_argv()),
            fingerprint={
                "framework": self.name,
                "method": table.method,
                "world_size": asked.world_size,
                "model": identity,
            },
            budget={"steps": steps} if steps > 0 else {"epochs": epochs},
            base_model=(model, None),
            inputs=(
                Input(model, "model", "spec.initializer.model", table.spell("model_name_or_path")),
                Input(data, "data set", "spec.initializer.dataset", table.spell("dataset_name")),
            ),
            # What is on the pod's volumes is looked into before the start.
            dataset=Dataset(data, None, split) if data.startswith("/") else None,
            model=model if model.startswith("/") else None,
        )

    # Check: what would fail later.

    def check_settings(
        self, asked: Asked, table: FlagTable, settings: Mapping[str, Setting], config_keys: Sequence[str]
    ) -> list[str]:
        """Return a problem each if the model or the data is not named."""
        needed = {"model_name_or_path": "model", "dataset_name": "data"}
        return [
            f"no {what} is named: write --{flag} <folder or Hub id>"
            for flag, what in needed.items()
            if flag not in settings
        ]


def _value(settings: Mapping[str, Setting], name: str) -> object:
    """Return a setting, or the trainer's default."""
    return settings[name].value if name in settings else TABLE.flags[name].default
