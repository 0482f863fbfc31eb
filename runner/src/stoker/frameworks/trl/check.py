"""What could go wrong with a TRL run, before a GPU is touched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from stoker.contract.exits import ExitCode
from stoker.frameworks.trl.checks import config_problems, contradictions
from stoker.frameworks.trl.data import data_problems
from stoker.frameworks.trl.decide import inputs_of
from stoker.plan.arguments import FlagTable, Setting, is_true
from stoker.plan.framework import Asked, Checker
from stoker.plan.inputs import DatasetColumns, ModelFolder

# Switches with which a checkpoint would not be whole.
_UNSAFE = {
    "save_only_model": "without the optimizer's and the scheduler's state no stopped run goes on as it was",
    "save_on_each_node": "all nodes share one output folder, in which each would write the same files at once",
}


class TRLChecker(Checker):
    """Checks a TRL run's settings and inputs."""

    def check_settings(
        self, asked: Asked, table: FlagTable, settings: Mapping[str, Setting], config_keys: Sequence[str]
    ) -> Iterable[str]:
        """Return one problem for each setting that is missing, unsafe, wrong, or that TRL misreads in a config file."""
        return [
            *_missing_or_unsafe(settings, config_keys),
            *contradictions(asked, table, settings),
            *config_problems(asked.content or {}, table, f"--config {asked.config}"),
            *_addresses(table, settings),
        ]

    def check_inputs(
        self, method: str, settings: Mapping[str, Setting], data: DatasetColumns | None, model: ModelFolder | None
    ) -> Iterable[tuple[ExitCode, str]]:
        """Return what does not fit: columns, chat template, rewards, lengths."""
        return data_problems(method, settings, data, model)


def _missing_or_unsafe(settings: Mapping[str, Setting], config_keys: Sequence[str]) -> list[str]:
    """Return one problem each if the model or the data is not named, or a checkpoint would not be safe."""
    problems = []
    limit = settings.get("save_total_limit")
    if limit is not None and limit.value == "1":
        problems.append(
            "--save_total_limit 1 deletes the last checkpoint before the next one is complete, so a run that is "
            "stopped between the two starts anew: write 2 or more"
        )
    for flag, why in _UNSAFE.items():
        if flag in settings and is_true(settings[flag].value):
            problems.append(f"--{flag} ({settings[flag].source}): {why}: leave it out")
    named = {name for name, setting in settings.items() if setting.value} | {*config_keys} - {*settings}
    if "model_name_or_path" not in named:
        problems.append("no model is named: write --model_name_or_path <folder or Hub id>")
    if not {"dataset_name", "datasets"} & named:
        problems.append("no data is named: write --dataset_name <folder or Hub id>")
    return problems


def _addresses(table: FlagTable, settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield one problem for each model or data set that is named by an address, of which TRL knows none."""
    for source in inputs_of(table, settings):
        scheme, sign, rest = source.value.partition("://")
        if not sign:
            continue
        fixes = [f"the Hub id {rest}"] if scheme == "hf" else []
        fixes += [f"the address into {source.initializer}.storageUri"] if source.initializer else []
        fix = ", or ".join(fixes) or "a folder or Hub id"
        yield f"{source.flag} {source.value} is an address, where TRL takes a folder or Hub id: write {fix}"
