"""What a plan asks of a training framework: three small interfaces, and what goes through them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stoker.contract.exits import ExitCode
from stoker.plan.arguments import FlagTable, Setting
from stoker.plan.inputs import DatasetColumns, Input, ModelFolder

Words = Mapping[str, tuple[str, ...]]


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
    values: Words
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What `--config` names, read.

    Attributes:
        path: the file to read; None where `--config` names something else.
        values: the flags it sets, each with its words.
        keys: every key with a value, flags or not.
        variables: the environment variables it sets.
        identity: settings that are no flags, but make another run, such as a mixture of data sets.
    """

    path: str | None = None
    values: Words = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    identity: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the flags of a run, and Stoker's own defaults, may depend on.

    Attributes:
        method: the training method.
        accelerator: the runtime's accelerator profile.
        workspace: the folder shared by all pods.
        world_size: the number of processes of the run.
        config: what `--config` names; None without one.
        content: what that file holds; None where it is no file, or was not read.
        values: the flags given in args and env, the stronger over the weaker.
        by_command: True if the command line names the method, which may then stand for a close relative.
    """

    method: str
    accelerator: str = "cpu"
    workspace: str = "/workspace"
    world_size: int = 1
    config: str | None = None
    content: Mapping[str, Any] | None = None
    values: Words = field(default_factory=dict)
    by_command: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """The flags that this very run may be given, and Stoker's defaults for them.

    Attributes:
        method: the method that is meant.
        table: its flags.
        recipe: flag → (value, why), where the user does not say.
    """

    method: str
    table: FlagTable
    recipe: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class FlagNames:
    """How a framework writes the settings that advice is about; empty where it has no such setting.

    Attributes:
        batch_size: rows per process and step.
        length: tokens after which a row is cut.
        loader_workers: processes that load data, for each training process.
        kept_checkpoints: how many checkpoints are kept.
        split: the part of the data to train on.
    """

    batch_size: str = ""
    length: str = ""
    loader_workers: str = ""
    kept_checkpoints: str = ""
    split: str = ""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A local data set that can be looked into before the start.

    Attributes:
        path: its folder or file, as the pods see it.
        config: the configuration of it that is asked for; None for its only one.
        split: the split that is trained on.
    """

    path: str
    config: str | None
    split: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What a framework makes of a run's settings.

    Attributes:
        module: the trainer's Python module, or its own name of what trains.
        argv: the trainer's command line, without its module.
        fingerprint: what a checkpoint must share to be resumed from.
        budget: how much training was asked for, under the name of its unit (`steps` or `epochs`).
        base_model: the model that is trained and its revision, as the manifest names them.
        inputs: the models and data sets it reads.
        dataset: the data set to look into before the start; None where there is none.
        model: the model's folder to look into before the start; None where there is none.
        loader_workers: processes that load data, for each training process.
        packages_needed: packages that its settings need and an image may lack → the setting as it is written.
    """

    module: str
    argv: tuple[str, ...]
    fingerprint: Mapping[str, Any]
    budget: Mapping[str, float]
    base_model: tuple[str | None, str | None]
    inputs: tuple[Input, ...]
    dataset: Dataset | None = None
    model: str | None = None
    loader_workers: int = 0
    packages_needed: Mapping[str, str] = field(default_factory=dict)


class Reader(ABC):
    """Reads what the user wrote."""

    @abstractmethod
    def read(self, args: Sequence[str]) -> Command:
        """Read a command line."""

    @abstractmethod
    def read_config(self, named: str, content: Mapping[str, Any] | None) -> ConfigFile:
        """Read what `--config` names.

        Args:
            named: the file, or the name of one of the framework's own configs.
            content: what the file holds; None where it was not read.
        """


class Decider(ABC):
    """Decides what is run."""

    @abstractmethod
    def options(self, asked: Asked) -> Options:
        """Return the flags that the run may be given, and Stoker's defaults.

        Raises:
            RunError: nothing is decided before the user says more (64).
        """

    @abstractmethod
    def decide(self, asked: Asked, table: FlagTable, settings: Mapping[str, Setting]) -> Decision:
        """Return what the settings come to.

        Args:
            asked: what the run is asked for.
            table: the flags it may be given.
            settings: what the layers came to, and the config file's identity.
        """


class Checker(ABC):
    """Checks what could go wrong."""

    @abstractmethod
    def check_settings(
        self, asked: Asked, table: FlagTable, settings: Mapping[str, Setting], config_keys: Sequence[str]
    ) -> Iterable[str]:
        """Return one problem for each setting that is missing, wrong, or contradicts another."""

    def check_inputs(
        self, method: str, settings: Mapping[str, Setting], data: DatasetColumns | None, model: ModelFolder | None
    ) -> Iterable[tuple[ExitCode, str]]:
        """Return why a run could not train on this data with this model, each with its exit code."""
        return ()


class TrainingFramework(Reader, Decider, Checker):
    """A training framework as the runner sees it.

    Attributes:
        name: value of the label `trainer.kubeflow.org/framework`.
        methods: the training methods it has.
        methods_gone: methods that it had, or has without our launching them → what to use instead.
        training: the module that runs it inside each training process; it has `train(job)` (see `stoker.rank.job`).
        packages: the distributions it is made of, each importable by its name; the manifest records their versions.
        secrets: flags whose values nobody may read in a log.
        has_configs: True if it brings configs with names, so that a variable may choose one (STOKER_ARG_CONFIG).
        flag_names: how it writes the settings that advice is about.
    """

    name: ClassVar[str]
    methods: ClassVar[tuple[str, ...]]
    methods_gone: ClassVar[Mapping[str, str]] = {}
    training: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    secrets: ClassVar[tuple[str, ...]] = ()
    has_configs: ClassVar[bool] = False
    flag_names: ClassVar[FlagNames] = FlagNames()

    @abstractmethod
    def flag_table(self, method: str) -> FlagTable:
        """Return the flags of a method, as `stoker flags` lists them."""

    @abstractmethod
    def trainer_module(self, method: str, world_size: int = 1) -> str:
        """Return what trains with this method in a world of this size, e.g. the Python module `trl.scripts.sft`."""
