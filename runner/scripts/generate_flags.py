"""Writes the flag tables of src/stoker/frameworks/trl/flags from the trainer's real parsers.

Run with the Python of the trainer's environment: `python runner/scripts/generate_flags.py [--check]`.
"""

from __future__ import annotations

import argparse
import enum
import importlib
import json
import sys
import typing
from collections.abc import Collection, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

FLAGS = Path(__file__).parent.parent / "src/stoker/frameworks/trl/flags"
sys.path[:0] = [str(FLAGS.parents[3]), str(FLAGS.parents[5])]

from runner.scripts.generated import write  # noqa: E402

from stoker.frameworks.trl.flags import METHODS, VERSION  # noqa: E402
from stoker.frameworks.trl.read import module_of  # noqa: E402


def table(method: str) -> dict[str, Any]:
    """Return the flags of a method's script as data."""
    parser = importlib.import_module(module_of(method)).make_parser()
    read_as_json = {name for config in parser.dataclass_types for name in getattr(config, "_VALID_DICT_FIELDS", ())}
    types = {name: hint for config in parser.dataclass_types for name, hint in typing.get_type_hints(config).items()}
    flags = {}
    for action in parser._actions:
        # Booleans that are on by default have a twin `--no_…`, which stores false under the same name.
        if isinstance(action, argparse._HelpAction | argparse._StoreFalseAction):
            continue
        flags[action.dest] = _entry(action, read_as_json)
        if action.nargs != "+" and any(typing.get_origin(part) is list for part in typing.get_args(types[action.dest])):
            flags[action.dest]["listed"] = True
    return {"trainer": f"trl {version('trl')}", "flags": dict(sorted(flags.items()))}


def _entry(action: argparse.Action, read_as_json: Collection[str]) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "json" if action.dest in read_as_json else _type(action)}
    if action.nargs in ("+", "*"):
        entry["many"] = True
    if action.nargs == "?" and entry["type"] != "bool":
        entry["alone"] = True
    if _takes_none(action):
        entry["none"] = True
    if action.choices:
        entry["choices"] = [str(getattr(choice, "value", choice)) for choice in action.choices]
    elif isinstance(action.type, enum.EnumType):
        entry["choices"] = [str(choice.value) for choice in list[Any](action.type)]
    if action.default is not None and action.default is not argparse.SUPPRESS and not callable(action.default):
        entry["default"] = str(getattr(action.default, "value", action.default))
    if action.help:
        # argparse would print %% as %.
        entry["help"] = " ".join(action.help.split()).replace("%%", "%")
    return entry


def _type(action: argparse.Action) -> str:
    name = getattr(action.type, "__name__", "str")
    if name == "string_to_bool":
        return "bool"
    if name in ("int", "float", "str", "dict", "tuple"):
        return name
    # What is left: a choice of texts, an enumeration of texts, and classes whose objects no text stands for.
    if action.choices or isinstance(action.type, enum.EnumType):
        return "str"
    return "list" if action.nargs == "+" else "object"


def _takes_none(action: argparse.Action) -> bool:
    """Return whether the parser reads the word `none` as None, and not as a text or a mistake."""
    if not callable(action.type) or action.choices:
        return False
    try:
        return action.type("none") is None
    except (ValueError, TypeError, argparse.ArgumentTypeError):
        return False


def tables() -> Iterator[tuple[Path, str]]:
    """Make the table of each method."""
    for method in METHODS:
        text = json.dumps(table(method), indent=1, ensure_ascii=False) + "\n"
        yield FLAGS / f"trl-{VERSION}" / f"{method}.json", text


if __name__ == "__main__":
    raise SystemExit(write(__doc__, "trl", VERSION, tables))
