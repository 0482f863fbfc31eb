"""The three interfaces of a training framework (read, decide, check), an optional one, and the types they exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stoker.contract.exits import ExitCode
from stoker.contract.samplers import SamplerRequest
from stoker.plan.arguments import FlagTable, Setting
from stoker.plan.estimate import Way
from stoker.plan.inputs import DatasetColumns, Input, ModelFolder
from stoker.plan.model_shape import ModelShape

Words = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Command:
    """A trainer's command line, split into its parts.

    Attributes:
        method: the training method it names; None if it names none.
        config: what `--config` names; None without one.
        values: flag → its words.
        problems: one line for each part that cannot be read.
    """

    method: str | None
    config: str | None
    values: Words
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The content of what `--config` names.

    Attributes:
        path: the file to read; None if `--config` names something else.
        values: the flags it sets, each with its words.
        keys: every key with a value, flags or not.
        variables: the environment variables it sets.
        identity: settings that are not flags but belong to the fingerprint, such as a mixture of data sets.
    """

    path: str | None = None
    values: Words = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    identity: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Machine:
    """What a recipe may know of the machine of a node; empty or None for what is not known.

    Attributes:
        cuda_generation: the major number of an NVIDIA device's compute capability.
        device_bytes: memory of a device.
        kernel_packages: installed distributions with faster kernels.
        torch: the first two numbers of the installed torch's version.
        cpus: whole CPU cores that the container requests.
        shm_bytes: size of /dev/shm.
        processes: training processes of the node.
    """

    cuda_generation: int | None = None
    device_bytes: int | None = None
    kernel_packages: tuple[str, ...] = ()
    torch: tuple[int, ...] = ()
    cpus: int | None = None
    shm_bytes: int | None = None
    processes: int = 1


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user asks for; the flags of the run and Stoker's defaults may depend on it.

    Attributes:
        method: the training method.
        accelerator: the runtime's accelerator profile.
        workspace: the folder shared by all pods.
        world_size: the number of processes of the run.
        config: what `--config` names; None without one.
        content: the content of that file; None if it is not a file or was not read.
        values: the flags in config file, args and env; the stronger layer wins.
        by_command: True if the command line names the method, which may then mean a closely related one.
        sharding: `full` if the processes share the model's state, `none` if each holds all of it; empty if unset.
        machine: what is known of the machine.
        shape: the model's weights; None if unknown.
        former: the fixed settings of the checkpoint or output that the run would go on from; None if there is none.
    """

    method: str
    accelerator: str = "cpu"
    workspace: str = "/workspace"
    world_size: int = 1
    config: str | None = None
    content: Mapping[str, Any] | None = None
    values: Words = field(default_factory=dict)
    by_command: bool = False
    sharding: str = ""
    machine: Machine = Machine()
    shape: ModelShape | None = None
    former: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """The flags that this run accepts, and Stoker's defaults for them.

    Attributes:
        method: the method to run.
        table: its flags.
        recipe: flag → (default, why).
    """

    method: str
    table: FlagTable
    recipe: Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class FlagNames:
    """How a framework spells the settings that advice names; empty if it has no such setting.

    Attributes:
        batch_size: rows per process and step.
        length: the number of tokens to cut a row to.
        loader_workers: data loading processes per training process.
        kept_checkpoints: how many checkpoints to keep.
        split: the part of the data to train on.
        evaluated_split: the part of the data to evaluate on.
        evaluation: whether to evaluate while training.
    """

    batch_size: str = ""
    length: str = ""
    loader_workers: str = ""
    kept_checkpoints: str = ""
    split: str = ""
    evaluated_split: str = ""
    evaluation: str = ""

    @property
    def of_memory(self) -> str:
        """What to lower if memory runs out, such as `batch_size or tokenizer.max_seq_len`."""
        return " or ".join(filter(None, (self.batch_size, self.length))) or "the batch size"


@dataclass(frozen=True, slots=True)
class Dataset:
    """A local data set to inspect before the start.

    Attributes:
        path: its folder or file, as the pods see it.
        config: the data set's configuration; None if it has only one.
        split: the split to train on.
        evaluated: the split to evaluate on while it trains; None if the run does not evaluate.
    """

    path: str
    config: str | None
    split: str
    evaluated: str | None = None


@dataclass(frozen=True, slots=True)
class Account:
    """An account that a setting needs.

    Attributes:
        setting: the setting, as written.
        variables: what tells of it; one of them must be set: `NAME` to any text, `NAME=text` to this text.
        only_with: the package without which no account is needed; empty if it always is.
    """

    setting: str
    variables: tuple[str, ...]
    only_with: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """How a framework runs the settings.

    Attributes:
        module: the trainer's Python module, or the trainer's own name for it.
        argv: the trainer's command line, without the module.
        fingerprint: what a checkpoint must have in common with the run to be resumed.
        budget: how much to train, by unit (`steps` or `epochs`).
        base_model: the model to train and its revision, as the manifest names them.
        inputs: the models and data sets that the run reads.
        dataset: the data set to inspect before the start; None without one.
        model: the model folder to inspect before the start; None without one.
        loader_workers: data loading processes per training process.
        packages_needed: package that an image may lack, or several joined by ` or ` → the setting that needs one.
        accounts_needed: the accounts that settings need.
        fixed: settings that must stay as they are on resume, each with its value or the trainer's default. It names all
            of them in every run: one that a checkpoint lacks was saved before it counted, and is not compared.
        samplers: what the samplers of the same TrainJob serve; None if the run has none.
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
    accounts_needed: tuple[Account, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    samplers: SamplerRequest | None = None


class Reader(ABC):
    """Reads what the user wrote."""

    @abstractmethod
    def read(self, args: Sequence[str]) -> Command:
        """Read a command line."""

    @abstractmethod
    def read_config(self, named: str, content: Mapping[str, Any] | None) -> ConfigFile:
        """Read what `--config` names.

        Args:
            named: the file, or the name of a config that the framework ships.
            content: the content of the file; None if it was not read.
        """


class Decider(ABC):
    """Decides what to run."""

    @abstractmethod
    def options(self, asked: Asked) -> Options:
        """Return the flags that the run accepts, and Stoker's defaults.

        Raises:
            RunError: the user must say more first (64).
        """

    @abstractmethod
    def decide(self, asked: Asked, table: FlagTable, settings: Mapping[str, Setting]) -> Decision:
        """Return how to run the settings.

        Args:
            asked: what the user asks for.
            table: the flags that the run accepts.
            settings: the merged settings, and the config file's identity.
        """


class Checker(ABC):
    """Finds what would fail later."""

    @abstractmethod
    def check_settings(
        self, asked: Asked, table: FlagTable, settings: Mapping[str, Setting], config_keys: Sequence[str]
    ) -> Iterable[str]:
        """Return one problem for each setting that is missing, wrong, or contradicts another."""

    def check_inputs(
        self, method: str, settings: Mapping[str, Setting], data: DatasetColumns | None, model: ModelFolder | None
    ) -> Iterable[tuple[ExitCode, str]]:
        """Return why the run cannot train on this data with this model, each with its exit code."""
        return ()


class Estimator:
    """Says what a run needs and how much it trains in a step: optional, and each method may be left out."""

    def ways(self, asked: Asked, table: FlagTable, settings: Mapping[str, Setting], shape: ModelShape) -> Sequence[Way]:
        """Return the way that was asked for, and others that need less memory; empty if nobody can tell."""
        return ()

    def rows_per_step(self, method: str, record: Mapping[str, Any]) -> float | None:
        """Return how many rows a process trains in a step; None if the record does not tell.

        Args:
            method: the training method.
            record: what the manifest says of a run (`Plan.record`): its fingerprint and its settings.
        """
        return None

    def steps_per_epoch(self, record: Mapping[str, Any]) -> float | None:
        """Return after how many steps an epoch ends early; None if an epoch is all rows, or the record does not tell.

        Args:
            record: as for `rows_per_step`.
        """
        return None


def estimator_of(framework: object) -> Estimator:
    """Return a framework as an estimator; one that knows nothing if it is none."""
    return framework if isinstance(framework, Estimator) else Estimator()


class TrainingFramework(Reader, Decider, Checker):
    """A training framework as the runner sees it.

    Attributes:
        name: value of the label `trainer.kubeflow.org/framework`.
        methods: the training methods it has.
        methods_gone: methods that Stoker does not launch, or that are gone → what to use instead.
        training: the module that runs it inside each training process; it has `train(job)` (see `stoker.rank.job`), and
            perhaps `check(plan)`, which raises a RunError for what the trainer would refuse in every attempt.
        packages: its distributions, each importable by its name; the manifest records their versions.
        secrets: flags whose values must not appear in a log.
        has_configs: True if it ships named configs; STOKER_ARG_CONFIG may then choose one.
        flag_names: how it spells the settings that advice names.
        shardings: the values of STOKER_SHARDING that it can carry out.
        free_settings: names, or patterns of names, of settings that may change on resume without a notice.
        node_settings: settings that its recipe may choose on each node by its own devices, because they change speed
            and memory, not what is trained.
    """

    name: ClassVar[str]
    methods: ClassVar[tuple[str, ...]]
    methods_gone: ClassVar[Mapping[str, str]] = {}
    training: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    secrets: ClassVar[tuple[str, ...]] = ()
    has_configs: ClassVar[bool] = False
    flag_names: ClassVar[FlagNames] = FlagNames()
    shardings: ClassVar[tuple[str, ...]] = ("none",)
    free_settings: ClassVar[tuple[str, ...]] = ()
    node_settings: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def flag_table(self, method: str) -> FlagTable:
        """Return the flags of a method, as `stoker flags` lists them."""

    def bound_flags(self, method: str, other: str) -> Collection[str]:
        """Return the flags whose value for one method does not suit another, such as the learning rate."""
        return ()

    @abstractmethod
    def trainer_module(self, method: str, world_size: int = 1) -> str:
        """Return what trains with this method and world size, for example the Python module `trl.scripts.sft`."""
