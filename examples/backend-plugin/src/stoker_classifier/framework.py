"""What the runner must know of the trainer to plan, launch and guard a run of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from stoker.plugin import Asked, FlagTable, Framework, Input, Setting
from stoker_classifier.flags import TABLE

MODULE = "stoker_classifier.train"
# A checkpoint made with another value of these is of another model.
_IDENTITY = ("model_name_or_path", "dataset_name", "dataset_train_split", "text_column", "label_column", "max_length")


class Classifier(Framework):
    """Text classification with transformers' Trainer."""

    name: ClassVar[str] = "classifier"
    methods: ClassVar[tuple[str, ...]] = ("classify",)
    # The trainer is transformers' own, so Stoker's stop, resume, guard and progress work as they do for TRL.
    training: ClassVar[str] = "stoker.training.transformers"
    packages: ClassVar[tuple[str, ...]] = ("torch", "transformers", "datasets")

    def flag_table(self, method: str) -> FlagTable:
        """Return the trainer's flags."""
        return TABLE

    def trainer_module(self, method: str, world_size: int = 1) -> str:
        """Return the trainer's module."""
        return MODULE

    def method_of(self, word: str) -> str | None:
        """Return the method if the word is the trainer's module."""
        return "classify" if word == MODULE else None

    def recipe(self, asked: Asked, table: FlagTable) -> Mapping[str, tuple[str, str]]:
        """Return the output folder, and the CPU where there is nothing else."""
        recipe = {"output_dir": (f"{asked.workspace}/output", "the run's folder in the workspace")}
        if asked.accelerator == "cpu":
            recipe["use_cpu"] = ("true", "the runtime has no accelerator")
        return recipe

    def problems(self, table: FlagTable, settings: Mapping[str, Setting], config_keys: Sequence[str]) -> list[str]:
        """Return a problem each if the model or the data is not named."""
        needed = {"model_name_or_path": "model", "dataset_name": "data"}
        return [f"no {what} is named: write --{flag} <folder or Hub id>" for flag, what in needed.items()
                if flag not in settings]  # fmt: skip

    def inputs(self, table: FlagTable, settings: Mapping[str, Setting]) -> list[Input]:
        """Return the model and the data."""
        named = (("model_name_or_path", "model", "model"), ("dataset_name", "data set", "dataset"))
        return [
            Input(str(settings[flag].value), what, f"spec.initializer.{part}", table.spell(flag))
            for flag, what, part in named
            if flag in settings
        ]

    def base_model(self, table: FlagTable, settings: Mapping[str, Setting]) -> tuple[str | None, str | None]:
        """Return the model to start from; it has no revision."""
        model = settings.get("model_name_or_path")
        return (str(model.value) if model else None), None

    def budget(self, table: FlagTable, settings: Mapping[str, Setting]) -> dict[str, float]:
        """Return `{"steps": n}` if max_steps is over 0, else `{"epochs": n}`."""
        steps, epochs = (
            float(str(settings[name].value if name in settings else table.flags[name].default))
            for name in ("max_steps", "num_train_epochs")
        )
        return {"steps": steps} if steps > 0 else {"epochs": epochs}

    def fingerprint(self, table: FlagTable, settings: Mapping[str, Setting], world_size: int) -> dict[str, object]:
        """Return model, data and world size."""
        found = {name: settings[name].value for name in _IDENTITY if name in settings}
        return {"framework": self.name, "method": table.method, "world_size": world_size, "model": found}
