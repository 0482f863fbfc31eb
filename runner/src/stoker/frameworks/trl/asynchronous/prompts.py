"""What messages call the data, and its longest prompt, which every sampler must have room for. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.rollouts.chat import encoding

TRAINED = "the data set"

# Prompts with the most bytes, which are measured in tokens: to encode all of a large data set takes minutes.
_MEASURED = 64


def longest_prompt(
    rows: Sequence[Mapping[str, Any]],
    encode: Callable[[Mapping[str, Any]], Sequence[int]],
    data: str = TRAINED,
    *,
    may_be_empty: bool = False,
) -> tuple[int, str]:
    """Return the tokens of the longest prompt, and where it is, such as `row 5 of the data set`.

    Args:
        rows: the data, with a column `prompt`.
        encode: gives the tokens of a row's prompt.
        data: what messages call it.
        may_be_empty: an environment adds to the prompts.

    Raises:
        RunError: a row has no prompt, or one that cannot be made into tokens (65).
    """

    def tokens(number: int) -> int:
        with encoding(f"row {number} of {data}"):
            return len(encode(rows[number]))

    sizes = []
    for number, row in enumerate(rows):
        prompt = row.get("prompt")
        size = _bytes(prompt) if isinstance(prompt, str | list) else None
        # A chat template makes tokens of an empty message too.
        if size is None or (size == 0 and not may_be_empty and not tokens(number)):
            raise RunError(
                ExitCode.BAD_DATA,
                f"row {number} of {data} has the prompt {prompt!r}: write a text or messages, or leave the row out",
            )
        sizes.append((size, number))
    most = sorted(sizes)[-_MEASURED:]
    length, number = max(((tokens(number), number) for _, number in most), default=(0, 0))
    return length, f"row {number} of {data}"


def evaluated_by_name(data: Any) -> dict[str, Any]:
    """Return data to evaluate, None, one set or several, by what messages call it."""
    if isinstance(data, Mapping):
        return {f"the evaluation data {name}": one for name, one in data.items()}
    return {} if data is None else {"the evaluation data": data}


def columns_of(data: Any) -> list[str]:
    """Return the columns that have a value: `datasets` gives each split the columns of all, filled with None."""
    return [name for name in data.column_names if data.data.column(name).null_count < data.data.num_rows]


def _bytes(prompt: Any) -> int:
    """Return the bytes of a prompt's texts: a character of some languages is several tokens."""
    contents = [message.get("content") for message in prompt if isinstance(message, Mapping)]
    texts = contents if isinstance(prompt, list) else [prompt]
    return sum(len(str(text).encode(errors="replace")) for text in texts)
