"""What the runner must know of a training framework to plan and launch a run of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stoker.arguments import FlagTable, Setting, config_words, split_args
from stoker.exits import ExitCode
from stoker.inputs import Data, Model


@dataclass(frozen=True, slots=True)
class Command:
    """A trainer's command line, read.

    Attributes:
        method: the training method it names; None if it names none.
        config: what `--config` names; None without one.
        values: flag → its words.
        problems: what cannot be read, a line each.
    """

    method: str | None
    config: str | None
    values: Mapping[str, tuple[str, ...]]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """What the flags of a run, and the values we set ourselves, may depend on.

    Attributes:
        method: the training method.
        accelerator: the runtime's accelerator profile.
        workspace: the folder shared by all pods.
        world_size: the number of processes of the run.
        config: what `--config` names; None without one.
        content: what that file holds; None where it is no file, or was not read.
        values: the flags given in args and env, the stronger over the weaker.
    """

    method: str
    accelerator: str = "cpu"
    workspace: str = "/workspace"
    world_size: int = 1
    config: str | None = None
    content: Mapping[str, Any] | None = None
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Input:
    """A model or data set that a run reads.

    Attributes:
        value: its folder, file or Hub id.
        what: what it is to the user, e.g. `model`.
        initializer: the field of a TrainJob that fetches it; empty if none does.
        flag: how the flag that names it is written.
    """

    value: str
    what: str
    initializer: str
    flag: str


class Framework(ABC):
    """A training framework as the runner sees it.

    Attributes:
        name: value of the label `trainer.kubeflow.org/framework`.
        methods: the training methods it has.
        training: the module that runs it inside each training process (see :mod:`stoker.training`).
        packages: the distributions it is made of, each importable by its name; the manifest records their versions.
        methods_gone: methods that the framework had, or has without our launching them → what to use instead.
        secrets: flags whose values nobody may read in a log.
        has_configs: True if it brings configs with names, so that a variable may choose one (STOKER_ARG_CONFIG).
    """

    name: ClassVar[str]
    methods: ClassVar[tuple[str, ...]]
    training: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    methods_gone: ClassVar[Mapping[str, str]] = {}
    secrets: ClassVar[tuple[str, ...]] = ()
    has_configs: ClassVar[bool] = False

    @abstractmethod
    def flag_table(self, method: str) -> FlagTable:
        """Return the flags of a method's command line."""

    @abstractmethod
    def trainer_module(self, method: str, world_size: int = 1) -> str:
        """Return what trains with this method in a world of this size, e.g. the Python module `trl.scripts.sft`."""

    @abstractmethod
    def method_of(self, word: str) -> str | None:
        """Return the method that the first word of a command line names, None if it names none."""

    def read(self, args: Sequence[str]) -> Command:
        """Read a command line of flags with dashes."""
        method = self.method_of(args[0]) if args else None
        words = args[1:] if method is not None else args
        values, problems = split_args(words)
        # Of `trl sft …`, `-m trl.scripts.sft …` or `sft …` the method is meant, without what starts it.
        stray = words[: next((at for at, word in enumerate(words) if word.startswith("--")), len(words))]
        meant = next((found for word in stray if (found := self._meant(word)) is not None), None)
        if method is None and meant is not None:
            problems = [
                f"{' '.join(stray)!r} does not name the method: begin the arguments with {self.trainer_module(meant)}"
            ]
        named = values.pop("config", None)
        if named is not None and len(named) != 1:
            problems.append("--config takes one file: write --config /workspace/config.yaml")
            named = None
        return Command(method, named[0] if named else None, values, tuple(problems))

    def _meant(self, word: str) -> str | None:
        method = word if word in self.methods else self.method_of(word)
        return method if method in self.methods else None

    def config_file(self, config: str) -> str | None:
        """Return the file that `--config` names; None if it names something else."""
        return config

    def config_values(self, content: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
        """Return the flags that a `--config` file sets, each with its words; of a file of defaults none."""
        return {key: config_words(value) for key, value in content.items() if value is not None}

    def method_meant(self, asked: Asked) -> str:
        """Return the method that the command line means: what it names may stand for more than one."""
        return asked.method

    def table_for(self, asked: Asked) -> FlagTable:
        """Return the flags that this very run may be given."""
        return self.flag_table(asked.method)

    @abstractmethod
    def recipe(self, asked: Asked, table: FlagTable) -> Mapping[str, tuple[str, str]]:
        """Return what we set where the user does not: flag → (value, why)."""

    def to_argv(self, settings: Iterable[Setting], config: str | None) -> list[str]:
        """Return the command line that gives these settings to the trainer."""
        return [*(["--config", config] if config else []), *(word for s in settings for word in s.to_argv())]

    @abstractmethod
    def problems(self, table: FlagTable, settings: Mapping[str, Setting], config_keys: Sequence[str]) -> list[str]:
        """Return one problem for each setting that is missing or cannot be meant."""

    def contradictions(self, asked: Asked, table: FlagTable, settings: Mapping[str, Setting]) -> Iterable[str]:
        """Return one problem for each setting that cannot be meant, alone or beside another."""
        return []

    def data_problems(
        self, method: str, settings: Mapping[str, Setting], data: Data | None, model: Model | None
    ) -> Iterable[tuple[ExitCode, str]]:
        """Return why a run could not train on this data with this model, each with its exit code."""
        return ()

    def needed_packages(self, settings: Mapping[str, Setting]) -> Mapping[str, str]:
        """Return packages that settings need and an image may lack: package → the setting as it is written."""
        return {}

    def has_mixture(self, fingerprint: Mapping[str, Any]) -> bool:
        """Return whether a run of this fingerprint trains on a mixture of data sets, not on the one that is named."""
        return False

    def variables(self, content: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the environment variables that a `--config` file sets."""
        return {}

    @abstractmethod
    def inputs(self, table: FlagTable, settings: Mapping[str, Setting]) -> list[Input]:
        """Return the models and data sets that a run reads."""

    @abstractmethod
    def base_model(self, table: FlagTable, settings: Mapping[str, Setting]) -> tuple[str | None, str | None]:
        """Return the model that is trained and its revision, as the manifest names them."""

    @abstractmethod
    def budget(self, table: FlagTable, settings: Mapping[str, Setting]) -> dict[str, float]:
        """Return how much training was asked for, under the name of its unit, e.g. `{"epochs": 3.0}`."""

    @abstractmethod
    def fingerprint(self, table: FlagTable, settings: Mapping[str, Setting], world_size: int) -> dict[str, object]:
        """Return what a checkpoint must share with a run that resumes from it."""
