"""TRL: its methods, flags, and what became of older flags."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from importlib import resources
from typing import Any, ClassVar

from stoker.arguments import Flag, FlagTable, Setting, is_true
from stoker.exits import ExitCode
from stoker.frameworks.base import Asked, Framework, Input
from stoker.frameworks.trl_checks import config_problems, config_variables, contradictions, needed_packages
from stoker.frameworks.trl_data import data_problems
from stoker.frameworks.trl_earlier import DEPRECATED, METHODS_GONE, REMOVED, RENAMED
from stoker.inputs import Data, Model
from stoker.recipes import recipe_for

VERSION = "1.16.0"
MODULE_PREFIX = "trl.scripts."

# Keys of a `--config` file that are no flags (trl/scripts/utils.py: TrlParser, DatasetMixtureConfig).
_CONFIG_SECTIONS = ("env", "datasets")
# Methods whose trainer TRL has without a script.
_OWN_SCRIPTS = {"orpo": "stoker.scripts.orpo"}
_RESERVED = {
    "resume_from_checkpoint": "leave it out and set STOKER_RESUME to auto, never or require",
    "enable_jit_checkpoint": "leave it out, a stop is checkpointed anyway, in step on all ranks",
    "local_rank": "leave it out, torchrun tells each process its rank",
}
# Switches with which a checkpoint would not be whole.
_UNSAFE = {
    "save_only_model": "without the optimizer's and the scheduler's state no stopped run goes on as it was",
    "save_on_each_node": "all nodes share one output folder, in which each would write the same files at once",
}
# What makes two runs the same run: a resume with any of these changed would train another model.
_IDENTITY = {
    "model": (
        *("model_name_or_path", "model_revision", "teacher_model_name_or_path", "teacher_model_revision"),
        "reward_model_name_or_path",
    ),
    "data": ("dataset_name", "dataset_config", "dataset_train_split", "datasets"),
    "peft": (
        "use_peft",
        "lora_r",
        "lora_alpha",
        "lora_dropout",
        "lora_target_modules",
        "lora_target_parameters",
        "lora_modules_to_save",
        "use_rslora",
        "use_dora",
        "load_in_4bit",
        "load_in_8bit",
    ),
}


class TRL(Framework):
    """Fine-tuning with TRL's own scripts (`trl.scripts.<method>`)."""

    name: ClassVar[str] = "trl"
    methods: ClassVar[tuple[str, ...]] = ("sft", "dpo", "kto", "orpo", "grpo", "rloo", "reward", "distillation")
    methods_gone: ClassVar[Mapping[str, str]] = METHODS_GONE
    training: ClassVar[str] = "stoker.training.transformers"
    secrets: ClassVar[tuple[str, ...]] = ("hub_token",)
    packages: ClassVar[tuple[str, ...]] = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")

    def flag_table(self, method: str) -> FlagTable:
        """Return the flags of the method's script, as generated from its parser."""
        return _flag_table(method)

    def trainer_module(self, method: str, world_size: int = 1) -> str:
        """Return TRL's module for the method, or ours where TRL has the trainer alone."""
        return _OWN_SCRIPTS.get(method, MODULE_PREFIX + method)

    def method_of(self, word: str) -> str | None:
        """Return `sft` for `trl.scripts.sft`; any other module of TRL's scripts by its last part too.

        A script of ours is named as if it were TRL's.
        """
        for method, module in _OWN_SCRIPTS.items():
            if word == module:
                return method
        return word.removeprefix(MODULE_PREFIX) if word.startswith(MODULE_PREFIX) else None

    def config_values(self, content: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]]:
        """Return the flags that a `--config` file sets."""
        # TRL ignores keys of the file that it does not know; a typing error must not train with a default.
        return super().config_values({key: value for key, value in content.items() if key not in _CONFIG_SECTIONS})

    def recipe(self, asked: Asked, table: FlagTable) -> Mapping[str, tuple[str, str]]:
        """Return the recipe of the accelerator, the kind of tuning and the method, and the output folder."""

        def on(flag: str) -> bool:
            words = asked.values.get(flag)
            if words is None:
                return False
            known = table.flags.get(flag)
            return not words or (is_true(words[0]) if known is None or known.type == "bool" else any(words))

        tuning = "full"
        if on("use_peft"):
            tuning = "qlora" if on("load_in_4bit") or on("load_in_8bit") else "lora"
        recipe = {
            default.flag: (default.value, default.reason)
            for default in recipe_for(asked.accelerator, tuning, asked.method)
            if default.unless is None or not on(default.unless)
        }
        if asked.world_size == 1:
            recipe.pop("ddp_backend", None)
        return {**recipe, "output_dir": (f"{asked.workspace}/output", "the run's folder in the workspace")}

    def problems(self, table: FlagTable, settings: Mapping[str, Setting], config_keys: Sequence[str]) -> list[str]:
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

    def contradictions(self, asked: Asked, table: FlagTable, settings: Mapping[str, Setting]) -> Iterable[str]:
        """Return one problem for each setting that cannot be meant, and for what TRL misreads in a `--config` file."""
        read = config_problems(asked.content or {}, table, f"--config {asked.config}")
        return [*contradictions(asked, table, settings), *read, *self._addresses(table, settings)]

    def _addresses(self, table: FlagTable, settings: Mapping[str, Setting]) -> Iterable[str]:
        """Yield one problem for each model or data set that is named by an address, of which TRL knows none."""
        for source in self.inputs(table, settings):
            scheme, sign, rest = source.value.partition("://")
            if not sign:
                continue
            fixes = [f"the Hub id {rest}"] if scheme == "hf" else []
            fixes += [f"the address into {source.initializer}.storageUri"] if source.initializer else []
            fix = ", or ".join(fixes) or "a folder or Hub id"
            yield f"{source.flag} {source.value} is an address, where TRL takes a folder or Hub id: write {fix}"

    def data_problems(
        self, method: str, settings: Mapping[str, Setting], data: Data | None, model: Model | None
    ) -> Iterable[tuple[ExitCode, str]]:
        """Return what does not fit: columns, chat template, rewards, lengths."""
        return data_problems(method, settings, data, model)

    def needed_packages(self, settings: Mapping[str, Setting]) -> Mapping[str, str]:
        """Return what trackers, quantization, kernels and rewards need."""
        return needed_packages(settings)

    def has_mixture(self, fingerprint: Mapping[str, Any]) -> bool:
        """Return whether the `--config` file has `datasets`."""
        return "datasets" in fingerprint["data"]

    def variables(self, content: Mapping[str, Any]) -> Mapping[str, str]:
        """Return what the file has under `env`."""
        return config_variables(content)

    def inputs(self, table: FlagTable, settings: Mapping[str, Setting]) -> list[Input]:
        """Return the model and the data set, where a flag names them."""
        found = []
        for flag, what, initializer in (
            ("model_name_or_path", "model", "spec.initializer.model"),
            ("dataset_name", "data set", "spec.initializer.dataset"),
            ("teacher_model_name_or_path", "teacher's model", ""),
            ("reward_model_name_or_path", "reward model", ""),
        ):
            setting = settings.get(flag)
            if setting is not None and isinstance(setting.value, str):
                found.append(Input(setting.value, what, initializer, table.spell(flag)))
        return found

    def base_model(self, table: FlagTable, settings: Mapping[str, Setting]) -> tuple[str | None, str | None]:
        """Return `--model_name_or_path` and `--model_revision`."""
        named = (settings.get(flag) for flag in ("model_name_or_path", "model_revision"))
        name, revision = (None if setting is None else str(setting.value) for setting in named)
        return name, revision

    def budget(self, table: FlagTable, settings: Mapping[str, Setting]) -> dict[str, float]:
        """Return `{"steps": n}` if max_steps is over 0, for then it rules; else `{"epochs": n}`."""

        def number(name: str) -> float:
            setting = settings.get(name)
            return float(str(setting.value if setting else table.flags[name].default))

        steps = number("max_steps")
        return {"steps": steps} if steps > 0 else {"epochs": number("num_train_epochs")}

    def fingerprint(self, table: FlagTable, settings: Mapping[str, Setting], world_size: int) -> dict[str, object]:
        """Return model, data, method, PEFT and world size."""
        found: dict[str, object] = {"framework": self.name, "method": table.method, "world_size": world_size}
        for part, names in _IDENTITY.items():
            found[part] = {name: settings[name].value for name in names if name in settings}
        return found


@cache
def _flag_table(method: str) -> FlagTable:
    data = json.loads(
        resources.files(__package__).joinpath(f"flags/trl-{VERSION}/{method}.json").read_text(encoding="utf-8")
    )
    flags = {
        name: Flag(
            name,
            entry["type"],
            entry.get("many", False),
            tuple(entry.get("choices", ())),
            entry.get("default"),
            entry.get("help", ""),
        )
        for name, entry in data["flags"].items()
    }
    others = partial(_other_methods, method)
    return FlagTable(data["trainer"], method, flags, RENAMED, REMOVED, _RESERVED, DEPRECATED, others)


def _other_methods(method: str, flag: str) -> tuple[str, ...]:
    return tuple(other for other in TRL.methods if other != method and flag in _flag_table(other).flags)
