"""Writes the flag tables of src/stoker/frameworks/trl/flags from the trainer's real parsers.

Run with the Python of the trainer's environment: `python runner/scripts/generate_flags.py [--check]`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
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
    module = importlib.import_module(module_of(method))
    flags = {}
    for action in module.make_parser()._actions:
        # Booleans that are on by default have a twin `--no_…`, which stores false under the same name.
        if isinstance(action, argparse._HelpAction | argparse._StoreFalseAction):
            continue
        flags[action.dest] = _entry(action)
    return {"trainer": f"trl {version('trl')}", "flags": dict(sorted(flags.items()))}


def _entry(action: argparse.Action) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": _type(action)}
    if action.nargs in ("+", "*"):
        entry["many"] = True
    if action.choices:
        entry["choices"] = [str(getattr(choice, "value", choice)) for choice in action.choices]
    if action.default is not None and action.default is not argparse.SUPPRESS and not callable(action.default):
        entry["default"] = str(getattr(action.default, "value", action.default))
    if action.help:
        # argparse would print %% as %.
        entry["help"] = " ".join(action.help.split()).replace("%%", "%")
    return entry


def _type(action: argparse.Action) -> str:
    name = getattr(action.type, "__name__", "str")
    if name == "string_to_bool" or isinstance(action, argparse._StoreTrueAction):
        return "bool"
    return name if name in ("int", "float") else "str"


def tables() -> Iterator[tuple[Path, str]]:
    """Make the table of each method."""
    for method in METHODS:
        text = json.dumps(table(method), indent=1, ensure_ascii=False) + "\n"
        yield FLAGS / f"trl-{VERSION}" / f"{method}.json", text


if __name__ == "__main__":
    raise SystemExit(write(__doc__, "trl", VERSION, tables))
