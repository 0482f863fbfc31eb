"""The longest prompt of the data, which every sampler must have room for. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoker.contract.exits import ExitCode, RunError

# Prompts with the most bytes, which are measured in tokens: to encode all of a large data set takes minutes.
_MEASURED = 64


def longest_prompt(
    rows: Sequence[Mapping[str, Any]], encode: Callable[[Mapping[str, Any]], Sequence[int]]
) -> tuple[int, int]:
    """Return the tokens of the longest prompt, and its row.

    Args:
        rows: the data, with a column `prompt`.
        encode: gives the tokens of a row's prompt.

    Raises:
        RunError: a row has no prompt (65).
    """
    for number, row in enumerate(rows):
        if not isinstance(row["prompt"], str | list):
            raise RunError(
                ExitCode.BAD_DATA,
                f"row {number} of the data set has the prompt {row['prompt']!r}: write a text or messages, or leave "
                "the row out",
            )
    most = sorted((_bytes(row["prompt"]), number) for number, row in enumerate(rows))[-_MEASURED:]
    return max(((len(encode(rows[number])), number) for _, number in most), default=(0, 0))


def _bytes(prompt: Any) -> int:
    """Return the bytes of a prompt's texts: a character of some languages is several tokens."""
    contents = [message.get("content") for message in prompt if isinstance(message, Mapping)]
    texts = contents if isinstance(prompt, list) else [prompt]
    return sum(len(str(text).encode(errors="replace")) for text in texts)
