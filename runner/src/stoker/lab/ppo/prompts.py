"""The prompts of a training, what is wrong with them, and in which order they come. Pure."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from stoker.contract.exits import ExitCode
from stoker.lab.errors import LabError, refuse
from stoker.lab.rows import Row, is_conversation, messages_problem, some, text_problem

_WRITE = 'write a list of texts, of conversations, or of rows such as [{"prompt": "…"}]'
# What a reward function gets besides the columns.
_TAKEN = ("prompts", "completions", "completion_ids")


def as_prompts(data: object) -> list[Row]:
    """Return prompts as rows with the column `prompt`; further columns are for reward functions.

    Args:
        data: texts, conversations (lists of messages), rows, or a Hugging Face data set.

    Raises:
        LabError: names what is wrong.
    """
    if isinstance(data, str | bytes | Mapping) or not isinstance(data, Iterable):
        raise LabError(f"the prompts are a {type(data).__name__}: {_WRITE}", ExitCode.BAD_DATA)
    rows: list[Row] = [row if isinstance(row, Mapping) else {"prompt": row} for row in data]
    if not rows:
        raise LabError("there are no prompts: give one or more", ExitCode.BAD_DATA)
    refuse(_problems(rows), ExitCode.BAD_DATA)
    return rows


def columns_of(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return the columns of rows that a reward function gets, besides the prompts."""
    return {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}


def next_prompts(count: int, size: int, position: int, seed: int) -> list[int]:
    """Return the numbers of the prompts that come next: each comes once before any comes again.

    Args:
        count: how many prompts there are.
        size: how many to return.
        position: how many came before.
        seed: of the order, which is another one each time around.
    """
    places = (divmod(at, count) for at in range(position, position + size))
    return [_order(count, around, seed)[place] for around, place in places]


def digest(rows: Sequence[Row]) -> str:
    """Return what two lists of prompts have in common only if they are the same."""
    return hashlib.sha256(json.dumps(list(map(dict, rows)), sort_keys=True, default=str).encode()).hexdigest()


@lru_cache(maxsize=4)
def _order(count: int, around: int, seed: int) -> list[int]:
    return random.Random(f"{seed} {around}").sample(range(count), count)


def _problems(rows: Sequence[Row]) -> Iterator[str]:
    lacking = [f"row {number}" for number, row in enumerate(rows) if "prompt" not in row]
    if lacking:
        has = ", ".join(map(str, rows[int(lacking[0].split()[1])])) or "of nothing"
        yield f"{some(lacking)} has the columns {has}, but needs prompt: rename the column"
        return
    check = messages_problem if is_conversation(rows[0]["prompt"]) else text_problem
    wrong = [(number, check(row["prompt"])) for number, row in enumerate(rows)]
    for told in dict.fromkeys(text for _, text in wrong if text):
        yield f"the prompt of {some([f'row {number}' for number, text in wrong if text == told])} {told}"
    for name in dict.fromkeys(name for row in rows for name in row):
        without = [f"row {number}" for number, row in enumerate(rows) if name not in row]
        if without:
            yield f"{some(without)} has no {name}, which other rows have: write it in every row"
    for name in sorted({*rows[0]} & {*_TAKEN}):
        yield f"column name {name} is reserved for reward functions: rename it"
