"""The keys that a TorchTune run accepts: those of its config, of its recipe, and of their components.

TorchTune accepts any `key=value` silently: a wrong key of a component fails after the model is loaded, a wrong key of
the recipe never fails. The data is generated from the package (`make generate-flags`).
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.plan.arguments import Flag, FlagTable

VERSION = "0.6.1"
COMPONENT = "_component_"

# method → its recipes for one process (None: use the distributed one) and for several.
RECIPES: Mapping[str, tuple[str | None, str]] = {
    "full": ("full_finetune_single_device", "full_finetune_distributed"),
    "lora": ("lora_finetune_single_device", "lora_finetune_distributed"),
    "qlora": ("lora_finetune_single_device", "lora_finetune_distributed"),
    "lora_dpo": ("lora_dpo_single_device", "lora_dpo_distributed"),
    "full_dpo": (None, "full_dpo_distributed"),
    "kd": ("knowledge_distillation_single_device", "knowledge_distillation_distributed"),
}
# The endings of TorchTune's config names for one process and for several, the best first.
_ENDINGS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "full": (("_full_single_device", "_full_low_memory", "_full"), ("_full", "_full_single_device")),
    "lora": (("_lora_single_device", "_lora"), ("_lora", "_lora_single_device")),
    "qlora": (("_qlora_single_device", "_qlora"), ("_qlora", "_lora", "_lora_single_device")),
    "lora_dpo": (("_lora_dpo_single_device", "_lora_dpo"), ("_lora_dpo", "_lora_dpo_single_device")),
    "full_dpo": (("_full_dpo",), ("_full_dpo",)),
    "kd": (("_KD_lora_single_device", "_KD_lora_distributed"), ("_KD_lora_distributed", "_KD_lora_single_device")),
}
_REFERENCE = re.compile(r"\$\{\s*([\w.]+)\s*\}")
_SET_RESUME = "leave it out and set STOKER_RESUME to auto, never or require"
_NEWEST = "leave it out, a run resumes from its newest complete checkpoint"
# Keys that only Stoker sets → what to write instead.
_RESERVED = {
    **dict.fromkeys(("resume_from_checkpoint", "checkpointer.resume_from_checkpoint"), _SET_RESUME),
    "checkpointer.should_load_recipe_state": _SET_RESUME,
    **dict.fromkeys(("checkpointer.recipe_checkpoint", "checkpointer.adapter_checkpoint"), _NEWEST),
    "checkpointer.output_dir": "leave it out and set output_dir",
    "enable_async_checkpointing": "leave it out, stoker seals only complete checkpoints",
}


@cache
def data(name: str) -> Mapping[str, Any]:
    """Return the generated `recipes`, `configs` or `components`."""
    path = resources.files(__package__).joinpath(f"flags/torchtune-{VERSION}/{name}.json")
    found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def recipe_of(method: str, world_size: int) -> str:
    """Return the recipe of a method for a world size."""
    single, distributed = RECIPES[method]
    return single if single is not None and world_size == 1 else distributed


def configs_of(method: str) -> dict[str, str]:
    """Return the configs of a method's recipes: name → file below TorchTune's `recipes/configs`."""
    found: dict[str, str] = {}
    for recipe in RECIPES[method]:
        if recipe is not None:
            found.update(data("recipes")[recipe]["configs"])
    return found


def choose_config(method: str, named: str, world_size: int) -> str:
    """Return the full name of a config, from that name or from a model such as `llama3_2/1B`.

    Raises:
        RunError: the method has no such config (64).
    """
    configs = configs_of(method)
    if named in configs:
        return named
    for ending in _ENDINGS[method][world_size > 1]:
        if named + ending in configs:
            return named + ending
    models = sorted({_model_of(config) for config in configs})
    close = difflib.get_close_matches(named, [*configs, *models], n=1)
    advice = f"did you mean {close[0]}?" if close else f"choose one of {', '.join(models)}"
    raise RunError(ExitCode.USAGE, f"--config {named} is not a config of torchtune {VERSION} ({method}): {advice}")


def _model_of(config: str) -> str:
    return re.sub(r"_(full|lora|qlora|dora|qdora|KD).*$", "", config)


@dataclass(frozen=True, slots=True)
class KeyTable(FlagTable):
    """The keys of one run.

    Attributes:
        recipe: TorchTune's name of the recipe.
        defaults: the config's values by key, which settings override.
        unread: True if the config is a file that was not read and may have any key.
    """

    recipe: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    unread: bool = False

    def spell(self, name: str) -> str:
        """Return the key unchanged: TorchTune's keys have no dashes."""
        return name

    def refusal(self, name: str) -> str | None:
        """Return why a key is refused, and what to write instead; None if it is accepted."""
        if name.startswith("+"):
            return f"{name} begins with '+', but TorchTune adds keys without it: write {name.lstrip('+')}=<value>"
        bare = name.removeprefix("~")
        if bare in self.reserved:
            return f"{name} is reserved for stoker: {self.reserved[bare]}"
        if name.startswith("~"):
            if bare.rpartition(".")[2] == COMPONENT or f"{bare}.{COMPONENT}" in self.defaults:
                return f"{name} names a component, but TorchTune removes only single keys: leave it out"
            if bare in self.defaults or any(key.startswith(bare + ".") for key in self.defaults):
                return None
        elif name in self.flags:
            return None
        known = [*self.defaults] if name.startswith("~") else [*self.flags]
        close = difflib.get_close_matches(bare, known, n=1)
        advice = f"did you mean {close[0]}?" if close else f"`stoker flags {self.method}` lists its keys"
        return f"{name} is not a key of {self.trainer} ({self.recipe}, config {self.config}): {advice}"


def key_table(
    method: str, world_size: int, config: str, defaults: Mapping[str, Any], given: Mapping[str, str]
) -> KeyTable:
    """Return the keys that a run accepts.

    Args:
        method: the training method.
        world_size: the number of processes.
        config: the config's name or path.
        defaults: the config's values, by key.
        given: the keys and values that override them.
    """
    recipe = recipe_of(method, world_size)
    flags = {key: Flag(key, _type(value), default=_text(value)) for key, value in defaults.items()}
    for key in _recipe_keys(recipe):
        if not any(name == key or name.startswith(key + ".") for name in flags):
            flags[key] = Flag(key, "str")
    sections = {key.removesuffix(f".{COMPONENT}") for key in defaults if key.endswith(f".{COMPONENT}")}
    sections |= {key.partition(".")[0] for key in given if "." in key} | {key for key in given if key in flags}
    for section in sorted(sections):
        path = given.get(f"{section}.{COMPONENT}") or given.get(section) or defaults.get(f"{section}.{COMPONENT}")
        if isinstance(path, str) and path:
            flags.update(_keys_of_component(section, path, defaults, given))
    for key in given:
        if key.startswith("~"):
            flags[key] = Flag(key, "str")
    return KeyTable(
        f"torchtune {VERSION}", method, flags, reserved=_RESERVED, config=config, recipe=recipe, defaults=defaults
    )


def _recipe_keys(recipe: str) -> tuple[str, ...]:
    """Return the keys that a recipe needs or reads."""
    keys = data("recipes")[recipe]
    return (*keys["needs"], *keys["reads"])


def _keys_of_component(
    section: str, path: str, defaults: Mapping[str, Any], given: Mapping[str, str]
) -> Iterator[tuple[str, Flag]]:
    if f"{section}.{COMPONENT}" in defaults:
        # TorchTune's short form of `dataset._component_=<component>` is `dataset=<component>`.
        yield section, Flag(section, "str")
    yield f"{section}.{COMPONENT}", Flag(f"{section}.{COMPONENT}", "str", default=path)
    parameters = data("components").get(path)
    for name in parameters or ():
        key = f"{section}.{name}"
        if name != "**" and key not in defaults:
            yield key, Flag(key, "str")
    if parameters is None or "**" in parameters:
        own = [name for name in parameters or () if name != "**"]
        for key in given:
            head, dot, name = key.partition(".")
            # The component passes other keys on, for example to `datasets.load_dataset`; misspelled parameters are not.
            if dot and head == section and not difflib.get_close_matches(name, own, n=1, cutoff=0.8):
                yield key, Flag(key, "str")


def unknown_keys(table: KeyTable) -> list[str]:
    """Return one problem for each unused key of a user's config.

    At the top level, users may add keys that other values refer to (`${model_dir}`). A section has the keys of its
    component.
    """
    read = {*_recipe_keys(table.recipe)}
    referred = {ref.partition(".")[0] for value in table.defaults.values() for ref in _REFERENCE.findall(str(value))}
    problems = []
    for key in {key.partition(".")[0]: None for key in table.defaults}:
        if key not in read | referred:
            close = difflib.get_close_matches(key, read, n=1)
            advice = f"did you mean {close[0]}?" if close else "remove it"
            problems.append(f"{key} in --config {table.config} is not a key of {table.recipe}: {advice}")
    return [*problems, *_unknown_parameters(table)]


def reserved_keys(table: KeyTable) -> list[str]:
    """Return one problem for each key of a user's config that only Stoker sets and that is not off there."""
    return [
        f"{key} in --config {table.config} is reserved for stoker: {advice}"
        for key, advice in table.reserved.items()
        # Copies of TorchTune's configs have this folder, but Stoker overrides it.
        if key != "checkpointer.output_dir" and table.defaults.get(key)
    ]


def _unknown_parameters(table: KeyTable) -> Iterator[str]:
    """Yield one problem for each key of a section that its component does not have; the pods would fail on it."""
    for key in table.defaults:
        section, _, name = key.partition(".")
        name = name.partition(".")[0]
        flag = table.flags.get(f"{section}.{COMPONENT}")
        component = None if flag is None else flag.default
        parameters = None if component is None else data("components").get(component)
        if parameters is None or {"**", name} & {*parameters} or name in ("", COMPONENT):
            continue
        if not {f"~{key}", f"~{section}.{name}"} & {*table.flags}:
            close = difflib.get_close_matches(name, parameters, n=1)
            advice = f"did you mean {section}.{close[0]}?" if close else f"choose from {', '.join(parameters)}"
            yield f"{key} in --config {table.config} is not a key of {component}: {advice}"


def flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a nested config's values by their dotted keys."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _type(value: Any) -> str:
    # A number may also be null or refer to another key, so it stays text.
    return "bool" if isinstance(value, bool) else "str"


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
