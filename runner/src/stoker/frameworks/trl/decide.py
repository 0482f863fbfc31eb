"""Decides how TRL runs the settings: recipe, command line, fingerprint, budget and inputs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from stoker.frameworks import command_line
from stoker.frameworks.trl.asynchronous.request import sampler_request
from stoker.frameworks.trl.dataset_formats import own_flags
from stoker.frameworks.trl.flags import flag_table
from stoker.frameworks.trl.kernels import speed_recipe
from stoker.frameworks.trl.memory import ways_of
from stoker.frameworks.trl.packages import needed_accounts, needed_packages
from stoker.frameworks.trl.read import module_of
from stoker.frameworks.trl.recipes import recipe_for
from stoker.frameworks.trl.resume import fixed_settings
from stoker.frameworks.trl.sharding import FULL, sharding_notices, sharding_recipe, shards, uses_fsdp
from stoker.plan.arguments import FlagTable, Setting, is_true, translated, without_negations
from stoker.plan.estimate import Way
from stoker.plan.inputs import Input
from stoker.plan.interfaces import Asked, Decider, Decision, Estimator, Options
from stoker.plan.model_shape import ModelShape

# The fingerprint: a resume with another value of any of these would train another model.
IDENTITY = {
    "model": (
        *("model_name_or_path", "model_revision", "teacher_model_name_or_path", "teacher_model_revision"),
        "reward_model_name_or_path",
    ),
    "data": ("dataset_name", "dataset_config", "dataset_train_split", "dataset_format", "datasets"),
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


class TRLDecider(Decider, Estimator):
    """Decides what TRL runs."""

    def options(self, asked: Asked) -> Options:
        """Return the method's flags, and the recipe for accelerator, kind of tuning and method."""
        table = replace(flag_table(asked.method), notices=sharding_notices(asked))
        values = translated(without_negations(asked.values, table), table)
        return Options(asked.method, table, _recipe(replace(asked, values=values), table))

    def decide(self, asked: Asked, table: FlagTable, settings: Mapping[str, Setting]) -> Decision:
        """Return how to run the settings."""
        name, revision = (
            None if setting is None else str(setting.value)
            for setting in (settings.get(flag) for flag in ("model_name_or_path", "model_revision"))
        )
        return Decision(
            module=module_of(asked.method),
            argv=tuple(command_line.argv_of(_of_trl(asked.method, settings, table), asked.config)),
            fingerprint=_fingerprint(asked, settings),
            budget=_budget(table, settings),
            base_model=(name, revision),
            inputs=(*inputs_of(table, settings), *_configurations(table, settings)),
            # A mixture of data sets replaces the single one.
            dataset=None if "datasets" in settings else command_line.local_dataset(settings),
            model=command_line.local_model(settings),
            loader_workers=command_line.loader_workers(settings),
            packages_needed=needed_packages(settings),
            accounts_needed=needed_accounts(settings),
            fixed=fixed_settings(asked, table, settings),
            samplers=sampler_request(asked, table, settings),
        )

    def ways(
        self, asked: Asked, table: FlagTable, settings: Mapping[str, Setting], shape: ModelShape
    ) -> tuple[Way, ...]:
        """Return the way that was asked for, and others that need less memory."""
        return ways_of(asked, table, settings, shape)

    def rows_per_step(self, method: str, record: Mapping[str, Any]) -> float | None:
        """Return how many rows a process trains in a step."""
        return command_line.rows_per_step(flag_table(method), record["settings"])


def _of_trl(method: str, settings: Mapping[str, Setting], table: FlagTable) -> list[Setting]:
    """Return the settings that TRL's command line must give, without the flags that only Stoker has."""
    ours = own_flags(method)
    return command_line.for_command_line({name: s for name, s in settings.items() if name not in ours}, table)


def _recipe(asked: Asked, table: FlagTable) -> Mapping[str, tuple[str, str]]:
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
    recipe |= sharding_recipe(asked, tuning)
    recipe |= speed_recipe(asked, table, recipe)
    return {**recipe, "output_dir": (f"{asked.workspace}/output", "the run's folder in the workspace")}


def inputs_of(table: FlagTable, settings: Mapping[str, Setting]) -> tuple[Input, ...]:
    """Return the models and the data set that flags name."""
    found = []
    for flag, what, initializer in (
        ("model_name_or_path", "model", "spec.initializer.model"),
        ("dataset_name", "data set", "spec.initializer.dataset"),
        ("teacher_model_name_or_path", "teacher's model", ""),
        ("reward_model_name_or_path", "reward model", ""),
    ):
        setting = settings.get(flag)
        # A mixture of data sets replaces the single one.
        replaced = flag == "dataset_name" and "datasets" in settings
        if setting is not None and isinstance(setting.value, str) and not replaced:
            found.append(Input(setting.value, what, initializer, table.spell(flag)))
    for path in _paths_of_mixture(settings):
        found.append(Input(path, "data set", "spec.initializer.dataset", "datasets in --config"))
    return tuple(found)


def _paths_of_mixture(settings: Mapping[str, Setting]) -> list[str]:
    """Return the folders of a mixture of data sets; others are Hub ids, or names of formats."""
    mixture = json.loads(str(settings["datasets"].value)) if "datasets" in settings else []
    return [path for one in mixture if (path := str(one["path"])).startswith("/")]


def _configurations(table: FlagTable, settings: Mapping[str, Setting]) -> Iterator[Input]:
    """Yield the files that flags name instead of holding a mapping."""
    for flag in ("accelerator_config", *(["fsdp_config"] if uses_fsdp(settings) else [])):
        value = str(settings[flag].value).strip() if flag in settings else ""
        if value and not value.startswith("{"):
            yield Input(value, "configuration", "", table.spell(flag))


def _budget(table: FlagTable, settings: Mapping[str, Setting]) -> dict[str, float]:
    """Return `{"steps": n}` if max_steps is above 0, because it then overrides epochs; else `{"epochs": n}`."""

    def number(name: str) -> float:
        setting = settings.get(name)
        return float(str(setting.value if setting else table.flags[name].default))

    steps = number("max_steps")
    return {"steps": steps} if steps > 0 else {"epochs": number("num_train_epochs")}


def _fingerprint(asked: Asked, settings: Mapping[str, Setting]) -> dict[str, object]:
    """Return model, data, method, PEFT, world size and sharding."""
    found: dict[str, object] = {"framework": "trl", "method": asked.method, "world_size": asked.world_size}
    for part, names in IDENTITY.items():
        found[part] = {name: settings[name].value for name in names if name in settings}
    if shards(asked):
        # Its checkpoints have another form.
        found["sharding"] = FULL
    return found
