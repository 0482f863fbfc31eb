"""What the runner must know of a training framework to plan and launch a run of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from stoker.arguments import FlagTable, Setting


class Framework(ABC):
    """A training framework as the runner sees it.

    Attributes:
        name: value of the label `trainer.kubeflow.org/framework`.
        methods: the training methods it has.
        training: the module that runs it inside each training process (see :mod:`stoker.training`).
        packages: the distributions it is made of, each importable by its name; the manifest records their versions.
    """

    name: ClassVar[str]
    methods: ClassVar[tuple[str, ...]]
    training: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]

    @abstractmethod
    def flag_table(self, method: str) -> FlagTable:
        """Return the flags of a method's command line."""

    @abstractmethod
    def trainer_module(self, method: str) -> str:
        """Return the Python module that trains with this method, e.g. `trl.scripts.sft`."""

    @abstractmethod
    def method_of(self, word: str) -> str | None:
        """Return the method that the first word of a command line names, None if it names none."""

    @abstractmethod
    def problems(self, settings: Mapping[str, Setting], config_keys: Sequence[str]) -> list[str]:
        """Return one problem for each setting that is missing or cannot be meant."""

    @abstractmethod
    def budget(self, method: str, settings: Mapping[str, Setting]) -> dict[str, float]:
        """Return how much training was asked for, under the name of its unit, e.g. `{"epochs": 3.0}`."""

    @abstractmethod
    def fingerprint(self, method: str, settings: Mapping[str, Setting], world_size: int) -> dict[str, object]:
        """Return what a checkpoint must share with a run that resumes from it."""
