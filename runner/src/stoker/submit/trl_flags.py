"""TRL's flags as words of its command line."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from typing import Any

FlagValue = str | int | float | bool | Sequence[str | int | float] | Mapping[str, Any]


def flag_words(name: str, value: FlagValue) -> list[str]:
    """Return a flag with its value as words of TRL's command line.

    True becomes a bare flag, a list several words, a mapping JSON.
    """
    if isinstance(value, bool):
        return [f"--{name}"] if value else [f"--{name}", "false"]
    if isinstance(value, str | int | float):
        return [f"--{name}", str(value)]
    if isinstance(value, Mapping):
        return [f"--{name}", json.dumps(value)]
    return [f"--{name}", *(str(item) for item in value)]


def without(words: list[str], flags: Container[str]) -> list[str]:
    """Return the words without some flags and their values."""
    kept, keep = [], True
    for word in words:
        if word.startswith("--"):
            keep = word.removeprefix("--").partition("=")[0].replace("-", "_") not in flags
        if keep:
            kept.append(word)
    return kept
