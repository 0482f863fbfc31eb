"""Finds what TRL would misread in a `--config` file: it converts text, and takes any other value as it is. Pure."""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stoker.contract.variables import DISABLE_PROGRESS
from stoker.plan.arguments import IN_FILES, Flag, FlagTable, is_boolean, is_none

# trl/scripts/utils.py: DatasetConfig.
_MIXED = ("path", "name", "data_dir", "data_files", "split", "columns", "fraction")
# Flags of several values that may be a single word in a file; TRL would split the word of any other into letters.
_WORD_FOR_LIST = ("lora_target_modules", "loss_type", "debug")
# Flag of text → what else a file may hold for it, by the types and `__post_init__` of TRL's configs.
_OTHER_THAN_TEXT: Mapping[str, Callable[[Any], bool]] = {
    "pad_to_multiple_of": lambda value: type(value) is int,
    "scale_rewards": lambda value: isinstance(value, bool),
    "trackio_static_space_id": lambda value: value is False,
}
# Variables that only the runner and the launcher may set, not a `--config` file.
_OWN_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
_OWN_PREFIXES = ("STOKER_", "PET_", "TORCHELASTIC_", "KUBEFLOW_TRAINER_")


def config_problems(content: Mapping[str, Any], table: FlagTable, path: str) -> Iterator[str]:
    """Yield one problem for each value of a `--config` file that TRL would misread."""
    for name, value in content.items():
        flag = table.flags.get(name)
        if isinstance(value, datetime.date):
            yield f"YAML reads key {name} of {path} as a date: put it in quotes"
        if flag is not None and value is not None and name != "datasets":
            yield from _misread(flag, value, f"key {name} of {path}")
    yield from _mixture_problems(content.get("datasets"), path)
    yield from _variable_problems(content.get("env"), path)


def _misread(flag: Flag, value: Any, key: str) -> Iterator[str]:
    """Yield what is wrong with the kind of a key's value."""
    if flag.type in IN_FILES:
        if is_none(flag, (str(value),)):
            return
        if not isinstance(value, dict if flag.type == "dict" else list):
            yield f"{key} must be {IN_FILES[flag.type]}, not {value!r}"
        elif flag.type == "tuple" and not _is_range(value):
            yield f"{key} must be two numbers, the smaller first, not {value!r}: write [-1, 1]"
    elif flag.type == "json":
        if not isinstance(value, dict | str):
            yield f"{key} must be a mapping, not {value!r}"
    elif flag.many and not isinstance(value, list | dict) and flag.name not in _WORD_FOR_LIST:
        yield f"{key} must be a list: write [{value}]"
    elif isinstance(value, list) and not flag.many and not flag.listed:
        # TRL would keep the list, and read any non-empty list as true.
        yield f"{key} must be one value, not a list: write it without brackets"
    elif flag.alone and isinstance(value, str) and is_boolean(value):
        yield f"{key} is text, which TRL does not read as true or false: write it without quotes"
    elif flag.type == "str" and not flag.choices:
        yield from _no_texts(flag, value, key)
    elif flag.type in ("int", "float") and isinstance(value, list) and any(isinstance(item, str) for item in value):
        yield f"{key} must be a list of numbers: write them without quotes"


def _is_range(value: Any) -> bool:
    numbers = [item for item in value if isinstance(item, int | float) and not isinstance(item, bool)]
    return len(value) == len(numbers) == 2 and numbers[0] <= numbers[1]


def _no_texts(flag: Flag, value: Any, key: str) -> Iterator[str]:
    """Yield one problem for each value that TRL would take as it is, although it expects text."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict):
            yield f"{key} must be text, not a mapping"
        elif flag.alone and isinstance(item, int | float):
            if not isinstance(item, bool):
                yield f"{key} must be true, false or text, not {item}"
        elif isinstance(item, int | float) and not _OTHER_THAN_TEXT.get(flag.name, lambda _: False)(item):
            kind = "true or false" if isinstance(item, bool) else "a number"
            yield f"YAML reads {item} in {key} as {kind}: put it in quotes"


def _variable_problems(variables: Any, path: str) -> Iterator[str]:
    if variables is None:
        return
    if not isinstance(variables, dict):
        yield f"key env of {path} must be a mapping of variables to values: write env: {{NAME: value}}"
        return
    for name, value in variables.items():
        if not isinstance(name, str) or not name or not name.isascii() or {"=", "\0"} & {*name}:
            yield f"{name!r} under env of {path} is not a variable name: write ASCII without '='"
        elif name in _OWN_VARIABLES or name == DISABLE_PROGRESS or name.startswith(_OWN_PREFIXES):
            yield f"a config file may not set {name} (env of {path}): set it in spec.trainer.env, or leave it out"
        elif value is None or isinstance(value, dict | list) or "\0" in str(value):
            yield f"{name} under env of {path} must be text: put it in quotes"


def _mixture_problems(mixture: Any, path: str) -> Iterator[str]:
    if mixture is None:
        return
    if not isinstance(mixture, list) or not mixture:
        yield f"key datasets of {path} must be a list of data sets, each with a path: write [{{path: owner/name}}]"
        return
    for entry in mixture:
        if not isinstance(entry, dict) or not entry.get("path"):
            yield f"an entry under datasets of {path} has no path: write path: <folder or Hub id>"
        for key in entry if isinstance(entry, dict) else ():
            if key not in _MIXED:
                close = difflib.get_close_matches(str(key), _MIXED, n=1)
                advice = f"did you mean {close[0]}?" if close else f"choose from {', '.join(_MIXED)}"
                yield f"an entry under datasets of {path} has the unknown key {key}: {advice}"


def config_variables(content: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that a `--config` file sets; TRL sets them in each process after torch is loaded."""
    variables = content.get("env")
    return {str(name): str(value) for name, value in variables.items()} if isinstance(variables, dict) else {}
