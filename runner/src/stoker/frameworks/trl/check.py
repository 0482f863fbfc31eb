"""Finds what would fail in a TRL run, before it uses a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from stoker.contract.exits import ExitCode
from stoker.frameworks.trl.data_checks import data_problems
from stoker.frameworks.trl.dataset_formats import FLAG
from stoker.frameworks.trl.decide import inputs_of
from stoker.frameworks.trl.file_checks import config_problems
from stoker.frameworks.trl.setting_checks import contradictions, self_contradictions
from stoker.plan.arguments import FlagTable, Setting, is_true
from stoker.plan.inputs import DatasetColumns, ModelFolder
from stoker.plan.interfaces import Asked, Checker

# Switches that make checkpoints incomplete.
_UNSAFE = {
    "save_only_model": "without the state of optimizer and scheduler, a stopped run cannot resume where it was",
    "save_on_each_node": "all nodes share one output folder and would write the same files at once",
}
# load_dataset takes folders, and names on the Hub.
_DATA_FILES = (".csv", ".json", ".jsonl", ".parquet", ".tsv")


class TRLChecker(Checker):
    """Checks a TRL run's settings and inputs."""

    def check_settings(
        self, asked: Asked, table: FlagTable, settings: Mapping[str, Setting], config_keys: Sequence[str]
    ) -> Iterable[str]:
        """Return one problem for each setting that is missing, unsafe or wrong, or that TRL misreads in a file."""
        return [
            *_unsafe(settings),
            *_missing(settings, config_keys),
            *_data_file(settings),
            *contradictions(asked, table, settings),
            *config_problems(asked.content or {}, table, f"--config {asked.config}"),
            *_addresses(table, settings),
            *_format_of_mixture(settings, config_keys),
        ]

    def check_inputs(
        self, method: str, settings: Mapping[str, Setting], data: DatasetColumns | None, model: ModelFolder | None
    ) -> Iterable[tuple[ExitCode, str]]:
        """Return what does not fit: columns, chat template, rewards or lengths."""
        return data_problems(method, settings, data, model)


def own_problems(method: str, table: FlagTable, settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield one problem for each setting that is wrong on every runtime, whatever the runtime sets."""
    yield from _unsafe(settings)
    yield from self_contradictions(method, table, settings)
    yield from _addresses(table, settings)
    for name in ("model_name_or_path", "dataset_name"):
        if name in settings and not settings[name].value:
            yield f"{name} is empty: write a folder or Hub id, or leave it out"
    yield from _data_file(settings)
    output_dir = settings.get("output_dir")
    if output_dir is not None and not str(output_dir.value).startswith("/"):
        yield f"output_dir is {output_dir.value!r}: write an absolute path such as /workspace/output"


def _data_file(settings: Mapping[str, Setting]) -> Iterator[str]:
    dataset = str(settings["dataset_name"].value) if "dataset_name" in settings else ""
    if dataset.startswith("/") and dataset.lower().endswith(_DATA_FILES):
        yield f"dataset_name is the file {dataset}: write its folder, {dataset.rpartition('/')[0] or '/'}"


def _unsafe(settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield one problem for each setting that makes checkpoints unsafe."""
    limit = settings.get("save_total_limit")
    best = settings.get("load_best_model_at_end")
    # The best one is kept beside those of the limit, in the place of the last one.
    least = 3 if best is not None and is_true(best.value) else 2
    if limit is not None and limit.value in ("1", "2") and int(limit.value) < least:
        beside = " with --load_best_model_at_end" if limit.value == "2" else ""
        yield (
            f"--save_total_limit {limit.value}{beside} deletes the last checkpoint before the next one is complete, "
            f"and a run stopped in between loses it: write {least} or more"
        )
    for flag, why in _UNSAFE.items():
        if flag in settings and is_true(settings[flag].value):
            yield f"--{flag} ({settings[flag].source}): {why}: leave it out"


def _missing(settings: Mapping[str, Setting], config_keys: Sequence[str]) -> Iterator[str]:
    named = {name for name, setting in settings.items() if setting.value} | {*config_keys} - {*settings}
    if "model_name_or_path" not in named:
        yield "the model is missing: write --model_name_or_path <folder or Hub id>"
    if not {"dataset_name", "datasets"} & named:
        yield "the data set is missing: write --dataset_name <folder or Hub id>"


def _format_of_mixture(settings: Mapping[str, Setting], config_keys: Sequence[str]) -> Iterator[str]:
    """Yield a problem if a format is named for a mixture, whose data sets may differ in it."""
    if FLAG in settings and "datasets" in config_keys:
        yield f"--{FLAG} ({settings[FLAG].source}) is for --dataset_name, not for a mixture (datasets): leave one out"


def _addresses(table: FlagTable, settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield one problem for each model or data set given as an address, because TRL cannot load addresses."""
    for source in inputs_of(table, settings):
        scheme, sign, rest = source.value.partition("://")
        if not sign:
            continue
        fixes = [f"the Hub id {rest}"] if scheme == "hf" else []
        fixes += [f"the address into {source.initializer}.storageUri"] if source.initializer else []
        fix = ", or ".join(fixes) or "a folder or Hub id"
        yield f"{source.flag} {source.value} is an address, but TRL needs a folder or Hub id: write {fix}"
