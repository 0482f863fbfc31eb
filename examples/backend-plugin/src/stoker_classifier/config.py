"""What a user writes: a run of the trainer as a config."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from stoker.plugin import MODEL, Initialized, Layer, LLMBackend, dataset_folder, resolve
from stoker_classifier.flags import TABLE
from stoker_classifier.framework import MODULE, Classifier

_PLACEMENT = ("num_nodes", "resources_per_node")


@dataclass
class ClassifierConfig(LLMBackend):
    """A run that trains a text classifier.

    Attributes are the trainer's flags; None leaves one to the runtime and the trainer.
    """

    framework: ClassVar[str] = Classifier.name
    command: ClassVar[tuple[str, ...]] = ("stoker", "run")
    runner: ClassVar[type[Classifier]] = Classifier

    model_name_or_path: str | None = None
    dataset_name: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    max_length: int | None = None
    learning_rate: float | None = None
    num_train_epochs: float | None = None
    max_steps: int | None = None
    per_device_train_batch_size: int | None = None

    def to_args(self, initializer: Initialized | None = None) -> list[str]:
        """Return the trainer's module and the flags that are set."""
        fetched = {}
        if initializer is not None and initializer.model is not None:
            fetched["model_name_or_path"] = MODEL
        if initializer is not None and initializer.dataset is not None:
            fetched["dataset_name"] = dataset_folder(initializer.dataset)
        flags = {**fetched, **self._given()}
        return [MODULE, *(word for name, value in flags.items() for word in (f"--{name}", value))]

    def validate(self) -> None:
        """Check the config against the trainer's flags.

        Raises:
            ValueError: names every problem.
        """
        super().validate()
        given = {name: (value,) for name, value in self._given().items()}
        problems = resolve(TABLE, [Layer("config", given)]).problems
        if problems:
            raise ValueError("\n".join(problems))

    def _given(self) -> dict[str, str]:
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in _PLACEMENT}
        return {name: str(value) for name, value in values.items() if value is not None}
