"""Decides how TorchTune runs the settings: config, recipe, command line, fingerprint, budget and inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import takewhile
from pathlib import PurePosixPath
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.frameworks.torchtune.keys import (
    COMPONENT,
    VERSION,
    KeyTable,
    choose_config,
    configs_of,
    data,
    flat,
    key_table,
    recipe_of,
)
from stoker.frameworks.torchtune.packages import needed_packages
from stoker.frameworks.torchtune.read import is_own_file
from stoker.frameworks.torchtune.resume import fixed_settings
from stoker.frameworks.torchtune.values import QUANTIZE, joined, keys_of, quantizes, value_of, values_of
from stoker.plan.arguments import FlagTable, Setting, above_zero
from stoker.plan.inputs import Input
from stoker.plan.interfaces import Asked, Decider, Decision, Estimator, Options, Words

_LORA = ("lora", "qlora", "lora_dpo", "kd")
# Only this checkpointer writes adapters in PEFT's layout, and not those of these models (its save_checkpoint).
_PEFT_CHECKPOINTER = "torchtune.training.FullModelHFCheckpointer"
_NO_PEFT = ("PHI3_MINI", "PHI4", "LLAMA3_VISION")
# The fingerprint, by the first part of a key. It includes what makes an epoch, because TorchTune counts steps by epochs
# and always resumes with the checkpoint's max_steps_per_epoch.
IDENTITY = {
    "model": (
        *("model", "teacher_model", "tokenizer", "dtype"),
        *("checkpointer", "teacher_checkpointer", "ref_checkpointer"),
    ),
    "data": ("dataset", "batch_size", "gradient_accumulation_steps", "max_steps_per_epoch", "shuffle"),
    "method": ("loss", "kd_loss", "kd_ratio", "optimizer_in_bwd"),
}
_ON_CPU = {
    "device": ("cpu", "the runtime has no accelerator"),
    "dtype": ("fp32", "CPUs compute bf16 slowly"),
}


class TorchTuneDecider(Decider, Estimator):
    """Decides what TorchTune runs."""

    def options(self, asked: Asked) -> Options:
        """Return the keys of the config, of the recipe and of their components, and Stoker's defaults.

        Raises:
            RunError: the config is missing, or the method has no such config (64).
        """
        if asked.by_command:
            asked = replace(asked, method=_lora_or_qlora(asked))
        table = _table_for(asked)
        return Options(asked.method, table, _recipe(asked, table))

    def decide(self, asked: Asked, table: FlagTable, settings: Mapping[str, Setting]) -> Decision:
        """Return how to run the settings."""
        keys = keys_of(table)
        return Decision(
            module=recipe_of(asked.method, asked.world_size),
            argv=_argv(settings.values(), table.config),
            fingerprint=_fingerprint(keys, settings, asked.world_size),
            # The fingerprint says what an epoch is.
            budget={"epochs": float(value_of(keys, settings, "epochs") or 0)},
            base_model=_base_model(keys, settings),
            inputs=_inputs(keys, settings),
            packages_needed=needed_packages(keys, settings),
            fixed=fixed_settings(keys, settings),
        )

    def rows_per_step(self, method: str, record: Mapping[str, Any]) -> float | None:
        """Return how many rows a process trains in a step; the fingerprint has what the config sets, too."""
        made = _data_of(record)
        batch = above_zero(made.get("batch_size"))
        return None if batch is None else batch * (above_zero(made.get("gradient_accumulation_steps")) or 1)

    def steps_per_epoch(self, record: Mapping[str, Any]) -> float | None:
        """Return the steps after which an epoch ends; None if it is all rows."""
        return above_zero(_data_of(record).get("max_steps_per_epoch"))


def _lora_or_qlora(asked: Asked) -> str:
    """Return `qlora` for a LoRA recipe on quantized weights, as Trainer does; otherwise the method."""
    if asked.method != "lora" or asked.config is None:
        return asked.method
    return "qlora" if quantizes(keys_of(_table_for(asked)), _texts(asked.values)) else asked.method


def _table_for(asked: Asked) -> FlagTable:
    """Return the keys of the config, of the recipe and of their components.

    Raises:
        RunError: the config is missing, or the method has no such config (64).
    """
    if asked.config is None:
        raise RunError(
            ExitCode.USAGE,
            "the config is missing: write --config <model>/<size>, such as llama3_2/1B, or set STOKER_ARG_CONFIG; "
            f"torchtune {VERSION} ({asked.method}) has {', '.join(sorted(configs_of(asked.method)))}",
        )
    given = _texts(asked.values)
    if is_own_file(asked.config):
        defaults = dict(flat(asked.content or {}))
        table = key_table(asked.method, asked.world_size, asked.config, defaults, given)
        return replace(table, unread=asked.content is None)
    config = choose_config(asked.method, asked.config, asked.world_size)
    defaults = data("configs")[config]
    return key_table(asked.method, asked.world_size, config, defaults, given)


def _recipe(asked: Asked, table: FlagTable) -> Mapping[str, tuple[str, str]]:
    """Return the defaults: the workspace's paths instead of the config's, and what a CPU needs."""
    defaults = keys_of(table).defaults
    found = {"output_dir": (f"{asked.workspace}/output", "the run's folder in the workspace")}
    found.update(_paths(defaults, asked.workspace))
    found.update(_source(defaults, asked.values))
    if asked.method in _LORA and _writes_peft({**defaults, **_texts(asked.values)}):
        found["save_adapter_weights_only"] = ("True", "only the adapter is new; the base model already exists")
    if asked.method == "qlora" and not quantizes(keys_of(table), _texts(asked.values)):
        found[QUANTIZE] = ("True", "the method is qlora")
    if asked.accelerator == "cpu":
        found.update(_ON_CPU)
        for key in ("enable_activation_offloading", "log_peak_memory_stats"):
            if defaults.get(key):
                found[key] = ("False", "there is no device memory")
        if defaults.get("compile"):
            found["compile"] = ("False", "compiling for a CPU needs a compiler, and the image has none")
        if str(defaults.get(f"optimizer.{COMPONENT}", "")).startswith("bitsandbytes."):
            found[f"optimizer.{COMPONENT}"] = ("torch.optim.AdamW", "bitsandbytes needs a GPU")
    return found


def _writes_peft(values: Mapping[str, Any]) -> bool:
    """Return whether the recipe saves an adapter that PEFT and vLLM read; else the merged model must be saved too."""
    return (
        values.get("checkpointer", values.get(f"checkpointer.{COMPONENT}")) == _PEFT_CHECKPOINTER
        and values.get("checkpointer.model_type") not in _NO_PEFT
    )


def _texts(values: Words) -> dict[str, str]:
    return {key: joined(words) for key, words in values.items()}


def _argv(settings: Iterable[Setting], config: str | None) -> tuple[str, ...]:
    """Return `--config <name or path> key=value …`."""
    given = {setting.name: joined(setting.value) for setting in settings}
    if given.get("dataset.data_dir") == given.get("dataset.source"):
        # `datasets` refuses a data_dir that is the source itself.
        given.pop("dataset.data_dir", None)
    words = [name if name.startswith("~") else f"{name}={value}" for name, value in given.items()]
    return (*(("--config", config) if config else ()), *words)


def _inputs(keys: KeyTable, settings: Mapping[str, Setting]) -> tuple[Input, ...]:
    """Return the model, the tokenizer's files, a teacher or reference model, and the data."""
    found = []
    for key, what, initializer in (
        ("checkpointer.checkpoint_dir", "model", "spec.initializer.model"),
        ("tokenizer.path", "tokenizer's file", "spec.initializer.model"),
        ("tokenizer.merges_file", "tokenizer's file", "spec.initializer.model"),
        ("teacher_checkpointer.checkpoint_dir", "teacher's model", "spec.initializer.model"),
        ("ref_checkpointer.checkpoint_dir", "reference model", "spec.initializer.model"),
        ("dataset.source", "data set", "spec.initializer.dataset"),
        ("dataset.data_dir", "data set", "spec.initializer.dataset"),
        ("dataset.data_files", "data set", "spec.initializer.dataset"),
    ):
        if value := value_of(keys, settings, key):
            found.append(Input(_before_pattern(value), what, initializer, key))
    return tuple(found)


def _base_model(keys: KeyTable, settings: Mapping[str, Setting]) -> tuple[str | None, None]:
    """Return the model's folder; TorchTune has no revisions."""
    folder = value_of(keys, settings, "checkpointer.checkpoint_dir")
    # Only OmegaConf can resolve a reference such as ${model_dir}.
    return (None if folder is None or "${" in folder else folder), None


def _fingerprint(keys: KeyTable, settings: Mapping[str, Setting], world_size: int) -> dict[str, object]:
    """Return model, data, method and world size, including values that come from the config."""
    values = values_of(keys, settings)
    found: dict[str, object] = {"framework": "torchtune", "method": keys.method, "world_size": world_size}
    found["config"] = str(keys.config)
    for part, heads in IDENTITY.items():
        named = {key: _plain(value) for key, value in sorted(values.items()) if key.partition(".")[0] in heads}
        found[f"{part} settings" if part == "method" else part] = named
    return found


def _data_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a run's record says of its data and batches; nothing if another framework wrote it."""
    found = record["fingerprint"].get("data")
    return found if isinstance(found, Mapping) else {}


def _before_pattern(path: str) -> str:
    """Return the folder of a file pattern such as `/data/*.jsonl`; return any other path or Hub id unchanged."""
    parts = PurePosixPath(path).parts
    plain = [*takewhile(lambda part: not {*"*?["} & {*part}, parts)]
    return str(PurePosixPath(*plain)) if path.startswith("/") and len(plain) < len(parts) else path


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float | str | type(None)) else str(value)


def _paths(defaults: Mapping[str, Any], workspace: str) -> dict[str, tuple[str, str]]:
    """Return the model's paths in the workspace, for those that the config has below `/tmp/<model>`."""
    folder = PurePosixPath(str(defaults.get("checkpointer.checkpoint_dir") or ""))
    if len(folder.parts) < 3 or folder.parts[:2] != ("/", "tmp"):
        return {}
    root = PurePosixPath(*folder.parts[:3])
    found = {}
    for key, value in defaults.items():
        if isinstance(value, str) and PurePosixPath(value).is_relative_to(root):
            path = PurePosixPath(workspace, "model", PurePosixPath(value).relative_to(root))
            found[key] = (str(path), "the model's folder in the workspace")
    return found


# File suffix → the builder of `datasets`.
_BUILDERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".csv": "csv", ".arrow": "arrow", ".txt": "text"}


def _source(defaults: Mapping[str, Any], values: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, str]]:
    """Return the source of a data set if only files or a folder are set, as Kubeflow's SDK does."""
    if "dataset.source" in values:
        return {}
    if words := values.get("dataset.data_files"):
        builder = _BUILDERS.get(PurePosixPath(words[0]).suffix)
        return {"dataset.source": (builder, "from the suffix of dataset.data_files")} if builder else {}
    if words := values.get("dataset.data_dir"):
        return {"dataset.source": (words[0], "dataset.data_dir holds the data")}
    return {}
