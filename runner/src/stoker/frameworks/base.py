"""The base class of plugins of version 0.1, whose trainer takes flags with dashes: each method answers one question.

Its public name is `stoker.frameworks.Framework`. The interfaces that the runner calls are in `stoker.plan.interfaces`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from stoker.contract.exits import ExitCode
from stoker.frameworks import command_line
from stoker.plan.arguments import FlagTable, Setting, without_negations
from stoker.plan.inputs import DatasetColumns, Input, ModelFolder
from stoker.plan.interfaces import (
    Asked,
    Command,
    ConfigFile,
    Decision,
    Estimator,
    FlagNames,
    Options,
    TrainingFramework,
)

__all__ = ["Asked", "Command", "Framework", "Input"]


class Framework(TrainingFramework, Estimator):
    """A training framework whose command line is flags with dashes, as plugins of version 0.1 write it.

    It stays for them. A new plugin derives from `TrainingFramework`.
    """

    flag_names: ClassVar[FlagNames] = command_line.FLAG_NAMES

    @abstractmethod
    def method_of(self, word: str) -> str | None:
        """Return the method that the first word of a command line names, None if it names none."""

    @abstractmethod
    def recipe(self, asked: Asked, table: FlagTable) -> Mapping[str, tuple[str, str]]:
        """Return the defaults for flags that the user does not set: flag → (value, why)."""

    @abstractmethod
    def problems(self, table: FlagTable, settings: Mapping[str, Setting], config_keys: Sequence[str]) -> list[str]:
        """Return one problem for each setting that is missing or wrong."""

    @abstractmethod
    def inputs(self, table: FlagTable, settings: Mapping[str, Setting]) -> list[Input]:
        """Return the models and data sets that the run reads."""

    @abstractmethod
    def base_model(self, table: FlagTable, settings: Mapping[str, Setting]) -> tuple[str | None, str | None]:
        """Return the model to train and its revision, as the manifest names them."""

    @abstractmethod
    def budget(self, table: FlagTable, settings: Mapping[str, Setting]) -> dict[str, float]:
        """Return how much to train, by unit, for example `{"epochs": 3.0}`."""

    @abstractmethod
    def fingerprint(self, table: FlagTable, settings: Mapping[str, Setting], world_size: int) -> dict[str, object]:
        """Return what a checkpoint must have in common with the run to be resumed."""

    def fixed(self, table: FlagTable, settings: Mapping[str, Setting], world_size: int) -> dict[str, object]:
        """Return further settings that must stay as they are on resume, such as the learning rate, set or not."""
        return {}

    def config_file(self, config: str) -> str | None:
        """Return the file that `--config` names; None if it names something else."""
        return config

    def config_values(self, content: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
        """Return the flags that a `--config` file sets, each with its words."""
        return command_line.config_flags(content)

    def variables(self, content: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the environment variables that a `--config` file sets."""
        return {}

    def method_meant(self, asked: Asked) -> str:
        """Return the method that the command line means: the one it names may stand for another."""
        return asked.method

    def table_for(self, asked: Asked) -> FlagTable:
        """Return the flags that this very run may be given."""
        return self.flag_table(asked.method)

    def to_argv(self, settings: Iterable[Setting], config: str | None) -> list[str]:
        """Return the command line that gives these settings to the trainer."""
        return command_line.argv_of(settings, config)

    def has_mixture(self, fingerprint: Mapping[str, Any]) -> bool:
        """Return whether the run trains on a mixture of data sets, not on the one that is named."""
        return False

    def contradictions(self, asked: Asked, table: FlagTable, settings: Mapping[str, Setting]) -> Iterable[str]:
        """Return one problem for each setting that is wrong, or that contradicts another."""
        return ()

    def needed_packages(self, settings: Mapping[str, Setting]) -> Mapping[str, str]:
        """Return packages that an image may lack, or several joined by ` or ` → the setting that needs one."""
        return {}

    def data_problems(
        self, method: str, settings: Mapping[str, Setting], data: DatasetColumns | None, model: ModelFolder | None
    ) -> Iterable[tuple[ExitCode, str]]:
        """Return why the run cannot train on this data with this model, each with its exit code."""
        return ()

    def read(self, args: Sequence[str]) -> Command:
        """Read a command line of flags."""
        return command_line.read_command(args, self.methods, self.method_of, self.trainer_module)

    def read_config(self, named: str, content: Mapping[str, Any] | None) -> ConfigFile:
        """Read a `--config` file of flags."""
        content = content or {}
        keys = command_line.keys_with_values(content)
        return ConfigFile(self.config_file(named), self.config_values(content), keys, self.variables(content))

    def options(self, asked: Asked) -> Options:
        """Return the method's flags and its recipe."""
        if asked.by_command:
            asked = replace(asked, method=self.method_meant(asked))
        table = self.table_for(asked)
        asked = replace(asked, values=without_negations(asked.values, table))
        return Options(asked.method, table, self.recipe(asked, table))

    def decide(self, asked: Asked, table: FlagTable, settings: Mapping[str, Setting]) -> Decision:
        """Return how to run the settings."""
        fingerprint = self.fingerprint(table, settings, asked.world_size)
        return Decision(
            module=self.trainer_module(asked.method, asked.world_size),
            argv=tuple(self.to_argv(command_line.for_command_line(settings, table), table.config or asked.config)),
            fingerprint=fingerprint,
            budget=self.budget(table, settings),
            base_model=self.base_model(table, settings),
            inputs=tuple(self.inputs(table, settings)),
            dataset=None if self.has_mixture(fingerprint) else command_line.local_dataset(settings),
            model=command_line.local_model(settings),
            loader_workers=command_line.loader_workers(settings),
            packages_needed=self.needed_packages(settings),
            fixed=self.fixed(table, settings, asked.world_size),
        )

    def rows_per_step(self, method: str, record: Mapping[str, Any]) -> float | None:
        """Return how many rows a process trains in a step, by the names that transformers uses."""
        return command_line.rows_per_step(self.flag_table(method), record["settings"])

    def check_settings(
        self, asked: Asked, table: FlagTable, settings: Mapping[str, Setting], config_keys: Sequence[str]
    ) -> Iterable[str]:
        """Return the results of `problems` and `contradictions`."""
        return [*self.problems(table, settings, config_keys), *self.contradictions(asked, table, settings)]

    def check_inputs(
        self, method: str, settings: Mapping[str, Setting], data: DatasetColumns | None, model: ModelFolder | None
    ) -> Iterable[tuple[ExitCode, str]]:
        """Return the results of `data_problems`."""
        return self.data_problems(method, settings, data, model)
