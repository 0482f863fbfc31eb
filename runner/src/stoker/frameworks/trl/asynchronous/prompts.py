"""The longest prompt of the data, which every sampler must have room for. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

# Prompts with the most characters, which are measured in tokens: to encode all of a large data set takes minutes.
_MEASURED = 64


def longest_prompt(
    rows: Sequence[Mapping[str, Any]], encode: Callable[[Mapping[str, Any]], Sequence[int]]
) -> tuple[int, int]:
    """Return the tokens of the longest prompt, and its row.

    Args:
        rows: the data, with a column `prompt`.
        encode: gives the tokens of a row's prompt.
    """
    most = sorted((_characters(row["prompt"]), number) for number, row in enumerate(rows))[-_MEASURED:]
    return max(((len(encode(rows[number])), number) for _, number in most), default=(0, 0))


def _characters(prompt: Any) -> int:
    if isinstance(prompt, list):
        return sum(len(str(message.get("content"))) for message in prompt if isinstance(message, Mapping))
    return len(str(prompt))
