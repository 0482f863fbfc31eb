"""The keys that a TorchTune run may be given: those of its config, of its recipe, and of the components it names.

TorchTune takes any `key=value` in silence: a wrong key of a component fails once the model is loaded, a wrong key of
the recipe never does. The data is generated from the package (`make generate-flags`).
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

# method → its recipes, for one process (None: the distributed one serves) and for several.
RECIPES: Mapping[str, tuple[str | None, str]] = {
    "full": ("full_finetune_single_device", "full_finetune_distributed"),
    "lora": ("lora_finetune_single_device", "lora_finetune_distributed"),
    "qlora": ("lora_finetune_single_device", "lora_finetune_distributed"),
    "lora_dpo": ("lora_dpo_single_device", "lora_dpo_distributed"),
    "full_dpo": (None, "full_dpo_distributed"),
    "kd": ("knowledge_distillation_single_device", "knowledge_distillation_distributed"),
}
# How TorchTune names a model's configs: the endings to look for, the best first, for one process and for several.
_ENDINGS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "full": (("_full_single_device", "_full_low_memory", "_full"), ("_full", "_full_single_device")),
    "lora": (("_lora_single_device", "_lora"), ("_lora", "_lora_single_device")),
    "qlora": (("_qlora_single_device", "_qlora"), ("_qlora", "_lora", "_lora_single_device")),
    "lora_dpo": (("_lora_dpo_single_device", "_lora_dpo"), ("_lora_dpo", "_lora_dpo_single_device")),
    "full_dpo": (("_full_dpo",), ("_full_dpo",)),
    "kd": (("_KD_lora_single_device", "_KD_lora_distributed"), ("_KD_lora_distributed", "_KD_lora_single_device")),
}
_REFERENCE = re.compile(r"\$\{\s*([\w.]+)\s*\}")
# Keys that a TorchTune run is given by the launch alone, and what to write instead.
_RESERVED = {
    "resume_from_checkpoint": "leave it out and set STOKER_RESUME to auto, never or require",
    "checkpointer.resume_from_checkpoint": "leave it out and set STOKER_RESUME to auto, never or require",
    "checkpointer.should_load_recipe_state": "leave it out and set STOKER_RESUME to auto, never or require",
    "checkpointer.recipe_checkpoint": "leave it out, a run goes on from its newest complete checkpoint",
    "checkpointer.adapter_checkpoint": "leave it out, a run goes on from its newest complete checkpoint",
    "checkpointer.output_dir": "leave it out and set output_dir",
    "enable_async_checkpointing": "leave it out, a checkpoint counts only once it is complete",
}


@cache
def data(name: str) -> Mapping[str, Any]:
    """Return the generated `recipes`, `configs` or `components`."""
    path = resources.files(__package__).joinpath(f"flags/torchtune-{VERSION}/{name}.json")
    found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def recipe_of(method: str, world_size: int) -> str:
    """Return the recipe that trains with a method in a world of this size."""
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
    """Return the full name of the config that a name means: its own, or a model's such as `llama3_2/1B`.

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
    advice = f"did you mean {close[0]}?" if close else f"it has those of {', '.join(models)}"
    raise RunError(ExitCode.USAGE, f"--config {named} is no config of torchtune {VERSION} ({method}): {advice}")


def _model_of(config: str) -> str:
    return re.sub(r"_(full|lora|qlora|dora|qdora|KD).*$", "", config)


@dataclass(frozen=True, slots=True)
class KeyTable(FlagTable):
    """The keys of one run.

    Attributes:
        recipe: TorchTune's name of the recipe.
        defaults: the config's values by key, before anything is laid over them.
        unread: True if the config is a file that was not read, so that any key may be in it.
    """

    recipe: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    unread: bool = False

    def spell(self, name: str) -> str:
        """Return the key as it is: TorchTune's are written without dashes."""
        return name

    def refusal(self, name: str) -> str | None:
        """Say why a key cannot be given, and what to write instead; None if it can."""
        if name.startswith("+"):
            return f"{name} is not TorchTune's way to add a key: write {name.lstrip('+')}=<value>"
        bare = name.removeprefix("~")
        if bare in self.reserved:
            return f"{name} is set by stoker itself: {self.reserved[bare]}"
        if name.startswith("~"):
            if bare.rpartition(".")[2] == COMPONENT or f"{bare}.{COMPONENT}" in self.defaults:
                return f"{name}: TorchTune removes no component, only single keys"
            if bare in self.defaults or any(key.startswith(bare + ".") for key in self.defaults):
                return None
        elif name in self.flags:
            return None
        known = [*self.defaults] if name.startswith("~") else [*self.flags]
        close = difflib.get_close_matches(bare, known, n=1)
        advice = f"did you mean {close[0]}?" if close else f"see `stoker flags {self.method}` for those it has"
        return f"{name} is not a key of {self.trainer} ({self.recipe}, config {self.config}): {advice}"


def key_table(
    method: str, world_size: int, config: str, defaults: Mapping[str, Any], given: Mapping[str, str]
) -> KeyTable:
    """Return the keys that a run may be given.

    Args:
        method: the training method.
        world_size: the number of processes.
        config: the config's name or path.
        defaults: what it holds, by key.
        given: the keys and values laid over it.
    """
    recipe = recipe_of(method, world_size)
    told = data("recipes")[recipe]
    flags = {key: Flag(key, _type(value), default=_text(value)) for key, value in defaults.items()}
    for key in (*told["needs"], *told["reads"]):
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


def _keys_of_component(
    section: str, path: str, defaults: Mapping[str, Any], given: Mapping[str, str]
) -> Iterator[tuple[str, Flag]]:
    if f"{section}.{COMPONENT}" in defaults:
        # `dataset=<component>` is TorchTune's short form of `dataset._component_=<component>`.
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
            # Whatever is not a slip of one of its own parameters is handed on, e.g. to `datasets.load_dataset`.
            if dot and head == section and not difflib.get_close_matches(name, own, n=1, cutoff=0.8):
                yield key, Flag(key, "str")


def unknown_keys(table: KeyTable) -> list[str]:
    """Return one problem for each key of a user's own config that nothing reads.

    At the top, keys that other values refer to (`${model_dir}`) are the user's own; a section's are its component's.
    """
    told = data("recipes")[table.recipe]
    read = {*told["needs"], *told["reads"]}
    referred = {ref.partition(".")[0] for value in table.defaults.values() for ref in _REFERENCE.findall(str(value))}
    problems = []
    for key in {key.partition(".")[0]: None for key in table.defaults}:
        if key not in read | referred:
            close = difflib.get_close_matches(key, read, n=1)
            advice = f"did you mean {close[0]}?" if close else "take it out"
            problems.append(f"{key} in --config {table.config} is not a key of {table.recipe}: {advice}")
    return [*problems, *_unknown_parameters(table)]


def reserved_keys(table: KeyTable) -> list[str]:
    """Return one problem for each key of a user's own config that is the launch's alone, and is not switched off."""
    return [
        f"{key} in --config {table.config} is set by stoker itself: {advice}"
        for key, advice in table.reserved.items()
        # Copies of TorchTune's configs have a folder there, which nothing is written to.
        if key != "checkpointer.output_dir" and table.defaults.get(key)
    ]


def _unknown_parameters(table: KeyTable) -> Iterator[str]:
    """Yield one problem for each key of a section that its component does not take; it would fail on it in the pods."""
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
            advice = f"did you mean {section}.{close[0]}?" if close else f"it takes {', '.join(parameters)}"
            yield f"{key} in --config {table.config} is not a key of {component}: {advice}"


def flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a nested config's values by their dotted keys."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _type(value: Any) -> str:
    # A key that may be a number may also be null or refer to another key, which only text can say.
    return "bool" if isinstance(value, bool) else "str"


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
