"""Has TRL's parsers read lists, where they read one word only."""

from __future__ import annotations

import argparse
import json
from contextlib import suppress

# Flags whose type in TRL's configs is a text or a list of texts. argparse gives them a single word.
LISTED = ("report_to", "optim_target_modules")


def read_lists(parser: argparse.ArgumentParser) -> None:
    """Have a parser of TRL read a JSON list as a list, for flags that take a text or a list."""
    for action in parser._actions:
        if action.dest in LISTED:
            action.type = _text_or_list


def _text_or_list(word: str) -> str | list[str]:
    if word.startswith("["):
        with suppress(ValueError, RecursionError):
            return [str(item) for item in json.loads(word)]
    return word
