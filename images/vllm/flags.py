"""Prints the flags of `vllm serve` as JSON, from its own parser; runs in the image's environment.

The chart checks values against it before a pod starts: `make generate-vllm-flags` writes it there.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any


def flags() -> dict[str, dict[str, Any]]:
    """Return each flag without its dashes: whether it is a switch, and the values it takes where it takes few."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    found: dict[str, dict[str, Any]] = {}
    for action in make_arg_parser(FlexibleArgumentParser())._actions:
        switch = action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction)
        facts: dict[str, Any] = {"switch": True} if switch else {}
        if action.choices and action.nargs is None:
            facts["choices"] = [str(choice) for choice in action.choices]
        for option in action.option_strings:
            if option.startswith("--") and not (
                switch and option.startswith("--no-") and len(action.option_strings) > 1
            ):
                found[option.removeprefix("--")] = facts
    return dict(sorted(found.items()))


if __name__ == "__main__":
    lines = [f" {json.dumps(name)}: {json.dumps(facts)}" for name, facts in flags().items()]
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")
