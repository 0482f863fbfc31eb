"""TorchTune: its methods and recipes, `recipe --config name key=value …`, and what a launch in our workspace adds."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import PurePosixPath
from typing import Any, ClassVar

from stoker.arguments import FlagTable, Setting, is_true
from stoker.exits import ExitCode, RunError
from stoker.frameworks.base import Asked, Command, Framework, Input
from stoker.frameworks.torchtune_checks import value_problems
from stoker.frameworks.torchtune_keys import (
    COMPONENT,
    RECIPES,
    VERSION,
    KeyTable,
    choose_config,
    configs_of,
    data,
    flat,
    key_table,
    recipe_of,
    reserved_keys,
    unknown_keys,
)

_LORA = ("lora", "qlora", "lora_dpo", "kd")
# The config whose keys `stoker flags` lists: any of a method would do.
_EXAMPLE = {"lora_dpo": "llama3_1/8B", "full_dpo": "llama3_1/8B", "kd": "llama3_2/8B_to_1B"}
# Models whose adapters TorchTune does not write in PEFT's layout (FullModelHFCheckpointer.save_checkpoint).
_NO_PEFT = ("PHI3_MINI", "PHI4")
# What makes two runs the same run, by the first part of a key. TorchTune goes on with the checkpoint's own
# max_steps_per_epoch whatever it is told, and counts steps by epochs, so what makes an epoch belongs here too.
_IDENTITY = {
    "model": (
        *("model", "teacher_model", "tokenizer", "dtype"),
        *("checkpointer", "teacher_checkpointer", "ref_checkpointer"),
    ),
    "data": ("dataset", "batch_size", "gradient_accumulation_steps", "max_steps_per_epoch", "shuffle"),
    "method": ("loss", "kd_loss", "kd_ratio", "optimizer_in_bwd"),
}
_QUANTIZE = "model.quantize_base"
_ON_CPU = {
    "device": ("cpu", "the runtime has no accelerator"),
    "dtype": ("fp32", "CPUs compute bf16 slowly"),
}


class TorchTune(Framework):
    """Fine-tuning with TorchTune's own recipes."""

    name: ClassVar[str] = "torchtune"
    methods: ClassVar[tuple[str, ...]] = tuple(RECIPES)
    training: ClassVar[str] = "stoker.training.torchtune"
    packages: ClassVar[tuple[str, ...]] = ("torch", "torchtune", "torchao", "torchdata", "datasets")
    has_configs: ClassVar[bool] = True

    def flag_table(self, method: str) -> FlagTable:
        """Return the keys of one of the method's configs."""
        return self.table_for(Asked(method, config=_EXAMPLE.get(method, "llama3_2/1B")))

    def trainer_module(self, method: str, world_size: int = 1) -> str:
        """Return the method's recipe for a world of this size."""
        return recipe_of(method, world_size)

    def method_of(self, word: str) -> str | None:
        """Return the method that a recipe's name stands for; `full` for `full_finetune_distributed`."""
        return next((method for method, recipes in RECIPES.items() if word in recipes), None)

    def read(self, args: Sequence[str]) -> Command:
        """Read `[recipe] [--config name] key=value …`."""
        words = list(args)
        method = self.method_of(words[0]) if words else None
        if method is not None:
            words.pop(0)
        config = None
        values: dict[str, tuple[str, ...]] = {}
        problems = []
        if words and not words[0].startswith(("-", "~")) and "=" not in words[0] and method is None:
            problems.append(_not_a_recipe(words.pop(0)))
        while words:
            word = words.pop(0)
            key, equals, value = word.partition("=")
            if key == "--config":
                config = value if equals else (words.pop(0) if words else "")
                if not config:
                    problems.append("--config needs a value: write --config llama3_2/1B, or the path of a file")
            elif word.startswith("~"):
                values[key] = ("",)
            elif word.startswith("-") or not equals:
                problems.append(f"{word!r} is no key=value: TorchTune's settings are written batch_size=2")
            elif "=" in value:
                problems.append(f"{word!r} has a second '=', which TorchTune cannot read: write it in a --config file")
            else:
                values[key] = (value,)
        return Command(method, config or None, values, tuple(problems))

    def method_meant(self, asked: Asked) -> str:
        """Return which of the two methods of a LoRA recipe is meant: the weights' quantization tells, as in Trainer."""
        if asked.method != "lora" or asked.config is None:
            return asked.method
        given = {key: " ".join(words) for key, words in asked.values.items()}
        return "qlora" if _quantizes(_keys(self.table_for(asked)), given) else asked.method

    def config_file(self, config: str) -> str | None:
        """Return the path of a user's own config; None for the name of one of TorchTune's."""
        return config if config.endswith((".yaml", ".yml")) else None

    def config_values(self, content: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
        """Return nothing: a config holds the defaults that flags are laid over."""
        return {}

    def table_for(self, asked: Asked) -> FlagTable:
        """Return the keys of the config that is meant, of the recipe, and of the components they name.

        Raises:
            RunError: no config is named, or the method has none of that name (64).
        """
        if asked.config is None:
            raise RunError(
                ExitCode.USAGE,
                "no config is named: write --config <model>/<size>, e.g. llama3_2/1B, or set STOKER_ARG_CONFIG; "
                f"torchtune {VERSION} ({asked.method}) has {', '.join(sorted(configs_of(asked.method)))}",
            )
        given = {key: " ".join(words) for key, words in asked.values.items()}
        if self.config_file(asked.config) is not None:
            defaults = dict(flat(asked.content or {}))
            table = key_table(asked.method, asked.world_size, asked.config, defaults, given)
            return replace(table, unread=asked.content is None)
        config = choose_config(asked.method, asked.config, asked.world_size)
        defaults = data("configs")[config]
        return key_table(asked.method, asked.world_size, config, defaults, given)

    def recipe(self, asked: Asked, table: FlagTable) -> Mapping[str, tuple[str, str]]:
        """Return the workspace's paths in the place of the config's own, and what a CPU needs."""
        defaults = _keys(table).defaults
        found = {"output_dir": (f"{asked.workspace}/output", "the run's folder in the workspace")}
        found.update(_paths(defaults, asked.workspace))
        found.update(_source(defaults, asked.values))
        if asked.method in _LORA and defaults.get("checkpointer.model_type") not in _NO_PEFT:
            found["save_adapter_weights_only"] = ("True", "the adapter is what was trained; the base model is there")
        given = {key: " ".join(words) for key, words in asked.values.items()}
        if asked.method == "qlora" and not _quantizes(_keys(table), given):
            found[_QUANTIZE] = ("True", "the method is qlora")
        if asked.accelerator == "cpu":
            found.update(_ON_CPU)
            for key in ("enable_activation_offloading", "log_peak_memory_stats"):
                if defaults.get(key):
                    found[key] = ("False", "there is no device memory")
            if defaults.get("compile"):
                found["compile"] = ("False", "compiling for a CPU needs a compiler, which the image has not")
            if str(defaults.get(f"optimizer.{COMPONENT}", "")).startswith("bitsandbytes."):
                found[f"optimizer.{COMPONENT}"] = ("torch.optim.AdamW", "bitsandbytes needs a GPU")
        return found

    def to_argv(self, settings: Iterable[Setting], config: str | None) -> list[str]:
        """Return `--config <name or path> key=value …`."""
        given = {setting.name: _joined(setting.value) for setting in settings}
        if given.get("dataset.data_dir") == given.get("dataset.source"):
            # A folder that is the source itself cannot be told a folder within it by its whole path.
            given.pop("dataset.data_dir", None)
        words = [name if name.startswith("~") else f"{name}={value}" for name, value in given.items()]
        return [*(["--config", config] if config else []), *words]

    def problems(self, table: FlagTable, settings: Mapping[str, Setting], config_keys: Sequence[str]) -> list[str]:
        """Return a problem for each key that nothing reads in a user's own config, and for what a recipe lacks."""
        keys = _keys(table)
        own_file = self.config_file(str(keys.config)) is not None
        if keys.unread:
            return []
        problems = [*unknown_keys(keys), *reserved_keys(keys)] if own_file else []
        for name, short in settings.items():
            if "=" in _joined(short.value):
                problems.append(f"{name} ({short.source}) has a '=' in its value, which TorchTune cannot read")
            long = settings.get(f"{name}.{COMPONENT}")
            if long is not None and long.value != short.value:
                both = f"{name}={short.value} ({short.source}) and {long.name}={long.value} ({long.source})"
                problems.append(f"{both} are about the same component: keep one of them")
        if "epochs" not in {*keys.defaults, *settings}:
            problems.append("no number of epochs is named: write epochs=<whole number>")
        if _value(keys, settings, "dataset.packed") in ("True", "true") and not _value(
            keys, settings, "tokenizer.max_seq_len"
        ):
            problems.append("dataset.packed=True needs a length: write tokenizer.max_seq_len=<tokens>")
        return problems

    def contradictions(self, asked: Asked, table: FlagTable, settings: Mapping[str, Setting]) -> Iterable[str]:
        """Return one problem for each value that cannot be meant."""
        keys = _keys(table)
        problems = [*value_problems(keys, settings, asked.accelerator)]
        given = {name: _joined(setting.value) for name, setting in settings.items()}
        quantizes = _quantizes(keys, given)
        if asked.method == "qlora" and not quantizes:
            off = f"{_QUANTIZE}={given.get(_QUANTIZE)}, but the method is qlora"
            problems.append(f"{off}: leave it out, or name a config and a method of LoRA")
        if asked.method == "lora" and quantizes:
            what = f"{_QUANTIZE} is true" if _is_told(keys, given) else f"{_builder(keys)} quantizes the model"
            problems.append(f"{what}, but the method is lora: set STOKER_METHOD=qlora, or do without quantization")
        return problems

    def inputs(self, table: FlagTable, settings: Mapping[str, Setting]) -> list[Input]:
        """Return the model, the tokenizer's files, a teacher's or reference model, and the data."""
        keys = _keys(table)
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
            if value := _value(keys, settings, key):
                found.append(Input(_before_pattern(value), what, initializer, key))
        return found

    def base_model(self, table: FlagTable, settings: Mapping[str, Setting]) -> tuple[str | None, str | None]:
        """Return the model's folder; TorchTune knows no revisions."""
        folder = _value(_keys(table), settings, "checkpointer.checkpoint_dir")
        # What a reference such as ${model_dir} stands for, only OmegaConf tells.
        return (None if folder is None or "${" in folder else folder), None

    def budget(self, table: FlagTable, settings: Mapping[str, Setting]) -> dict[str, float]:
        """Return `{"epochs": n}`: what an epoch is, the fingerprint says."""
        return {"epochs": float(_value(_keys(table), settings, "epochs") or 0)}

    def fingerprint(self, table: FlagTable, settings: Mapping[str, Setting], world_size: int) -> dict[str, object]:
        """Return model, data, method and world size, with the config's own values where nothing was laid over them."""
        keys = _keys(table)
        values = _values(keys, settings)
        found: dict[str, object] = {"framework": self.name, "method": keys.method, "world_size": world_size}
        found["config"] = str(keys.config)
        for part, heads in _IDENTITY.items():
            named = {key: _plain(value) for key, value in sorted(values.items()) if key.partition(".")[0] in heads}
            found[f"{part} settings" if part == "method" else part] = named
        return found


def _keys(table: FlagTable) -> KeyTable:
    if not isinstance(table, KeyTable):
        raise TypeError(f"{table.trainer} is not TorchTune's table")
    return table


def _not_a_recipe(word: str) -> str:
    recipes = [recipe for pair in RECIPES.values() for recipe in pair if recipe is not None]
    close = difflib.get_close_matches(word, recipes, n=1, cutoff=0.95)
    if word in RECIPES:
        close = [RECIPES[word][1]]
    advice = f"did you mean {close[0]}?" if close else f"it launches {', '.join(recipes)}"
    return f"{word!r} is no recipe that stoker launches: {advice}"


def _value(keys: KeyTable, settings: Mapping[str, Setting], key: str) -> str | None:
    """Return a key's value as text: what was laid over the config, else the config's own."""
    value = _values(keys, settings).get(key)
    return None if value is None or value == "null" else _joined(value)


def _values(keys: KeyTable, settings: Mapping[str, Setting]) -> dict[str, object]:
    """Return what the recipe reads: the config's values, less those taken out, and what is laid over them.

    `dataset=<component>` counts as what it is short for.
    """
    gone = tuple(name[1:] for name in settings if name.startswith("~"))
    kept = {k: v for k, v in keys.defaults.items() if k not in gone and not k.startswith(tuple(f"{g}." for g in gone))}
    for name, setting in settings.items():
        if not name.startswith("~"):
            kept[f"{name}.{COMPONENT}" if f"{name}.{COMPONENT}" in keys.defaults else name] = setting.value
    return kept


def _joined(value: object) -> str:
    return " ".join(value) if isinstance(value, tuple) else str(value)


def _before_pattern(path: str) -> str:
    """Return the folder that a pattern of files (`/data/*.jsonl`) looks in; any other path, or Hub id, as it is."""
    parts = PurePosixPath(path).parts
    plain = [*takewhile(lambda part: not {*"*?["} & {*part}, parts)]
    return str(PurePosixPath(*plain)) if path.startswith("/") and len(plain) < len(parts) else path


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float | str | type(None)) else str(value)


def _quantizes(keys: KeyTable, given: Mapping[str, str]) -> bool:
    """Say whether the model's weights are quantized: as its builder is told, else as the builder does by itself.

    Args:
        keys: the run's keys, with the config's values.
        given: what is laid over them.
    """
    if _is_told(keys, given):
        return is_true(given.get(_QUANTIZE, str(keys.defaults.get(_QUANTIZE))))
    return _builder(keys).rpartition(".")[2].startswith("qlora")


def _is_told(keys: KeyTable, given: Mapping[str, str]) -> bool:
    return _QUANTIZE in given or (_QUANTIZE in keys.defaults and f"~{_QUANTIZE}" not in given)


def _builder(keys: KeyTable) -> str:
    """Return what makes the model: the config's builder, or the one laid over it."""
    component = keys.flags.get(f"model.{COMPONENT}")
    return "" if component is None else str(component.default)


def _paths(defaults: Mapping[str, Any], workspace: str) -> dict[str, tuple[str, str]]:
    """Return the model's paths in the workspace: a config's own lie below `/tmp/<model>`."""
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


# The builders of `datasets` by the ending of a file.
_BUILDERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".csv": "csv", ".arrow": "arrow", ".txt": "text"}


def _source(defaults: Mapping[str, Any], values: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, str]]:
    """Return the source of a data set of which only files or a folder were given, as Kubeflow's SDK gives them."""
    if "dataset.source" in values:
        return {}
    if words := values.get("dataset.data_files"):
        builder = _BUILDERS.get(PurePosixPath(words[0]).suffix)
        return {"dataset.source": (builder, "by the ending of dataset.data_files")} if builder else {}
    if words := values.get("dataset.data_dir"):
        return {"dataset.source": (words[0], "dataset.data_dir holds the data")}
    return {}
