"""The interface of a backend and the registry that finds one by framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeVar

from stoker.arguments import FlagTable, Setting
from stoker.exits import ExitCode, RunError


class LLMBackend(ABC):
    """A training framework as the runner sees it.

    Attributes:
        framework: value of the label `trainer.kubeflow.org/framework`.
        methods: the training methods it has.
    """

    framework: ClassVar[str]
    methods: ClassVar[tuple[str, ...]]

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


Backend = TypeVar("Backend", bound=type[LLMBackend])
_REGISTRY: dict[str, type[LLMBackend]] = {}


def register_backend(name: str) -> Callable[[Backend], Backend]:
    """Class decorator that makes a backend known under a framework's name.

    Raises:
        ValueError: the name is taken; the message names the class that holds it.
    """

    def register(cls: Backend) -> Backend:
        holder = _REGISTRY.get(name)
        if holder is not None and holder is not cls:
            raise ValueError(f"backend {name!r} is registered already, by {holder.__module__}.{holder.__qualname__}")
        _REGISTRY[name] = cls
        return cls

    return register


def get_registered_backends() -> dict[str, type[LLMBackend]]:
    """Return every known backend class by framework."""
    return dict(_REGISTRY)


def get_backend(name: str) -> LLMBackend:
    """Return the backend of a framework.

    Raises:
        RunError: there is none (78).
    """
    try:
        return _REGISTRY[name]()
    except KeyError:
        raise RunError(
            ExitCode.CONFIG,
            f"framework {name!r} has no backend: the label trainer.kubeflow.org/framework of the runtime's pods "
            f"(STOKER_FRAMEWORK) must be one of {', '.join(sorted(_REGISTRY))}",
        ) from None
