"""Writes the flag tables of src/stoker/frameworks/flags from the trainer's real parsers.

Run with the Python of the trainer's environment: `python runner/scripts/generate_flags.py [--check]`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

FLAGS = Path(__file__).parent.parent / "src/stoker/frameworks/flags"
sys.path.insert(0, str(FLAGS.parents[2]))

from stoker.frameworks.trl import TRL, VERSION  # noqa: E402


def table(method: str) -> dict[str, Any]:
    """Return the flags of a method's script as data."""
    module = importlib.import_module(TRL().trainer_module(method))
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


def main() -> int:
    """Write the tables; with --check, compare them and return 1 if one has drifted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a table has drifted")
    check = parser.parse_args().check
    if version("trl") != VERSION:
        print(f"this environment has trl {version('trl')}, the tables are for {VERSION}", file=sys.stderr)
        return 1
    drifted = []
    for method in TRL.methods:
        path = FLAGS / f"trl-{VERSION}" / f"{method}.json"
        text = json.dumps(table(method), indent=1, ensure_ascii=False) + "\n"
        if not path.exists() or path.read_text() != text:
            drifted.append(str(path))
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if check and drifted:
        print("drifted, run `make generate`:", *drifted, sep="\n  ", file=sys.stderr)
    return 1 if check and drifted else 0


if __name__ == "__main__":
    raise SystemExit(main())
