"""Rewards that check an answer, named and called like TRL's.

`math_answer` is for GSM8K and data like it: the right answer follows `####` in the column `answer`, `solution` or
`ground_truth`, or is all there is in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

_MARK = "####"
# A number as people write it: a sign, a currency, commas between thousands, decimals, an exponent.
_NUMBER = re.compile(
    r"(?P<sign>[-+\u2212]?)\s*[$€£¥₹]?\s*(?P<late>[-+\u2212]?)"
    r"(?P<digits>(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)(?P<exponent>[eE][-+]?\d{1,3})?"
)
# What makes the number before it a part of something else: 1/2, 7:30, 1,23, 1.2.3, 1 234.
_GOES_ON = re.compile(r"[ \t]*(?:[/^:][ \t]*)?\d|[,.]\d")
# Columns that may hold the right answer; the first that is there counts.
ANSWERS = ("answer", "solution", "ground_truth")


def math_answer(completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """Return 1.0 for each completion whose number after `####` is the right one, else -0.2.

    None where the data has no number: there is nothing to check.
    """
    return _judged(completions, columns, 1.0, -0.2)


def get_math_answer(right: float = 1.0, wrong: float = -0.2) -> Callable[..., list[float | None]]:
    """Return `math_answer` with other rewards, for example `get_math_answer(right=1.0,wrong=0.0)`."""

    def math_answer(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        return _judged(completions, columns, right, wrong)

    return math_answer


def answer_in(text: str) -> Decimal | None:
    """Return the number after the first `####` of a text; None if there is none."""
    _, mark, after = text.partition(_MARK)
    return _number(after) if mark else None


def _judged(completions: Sequence[Any], columns: dict[str, Any], right: float, wrong: float) -> list[float | None]:
    for name in ANSWERS:
        if name in columns:
            truths = columns[name]
            break
    else:
        raise KeyError(f"math_answer needs a column with the right answer: {', '.join(ANSWERS)}")
    rewards: list[float | None] = []
    for completion, truth in zip(completions, truths, strict=True):
        expected = answer_in(str(truth)) if _MARK in str(truth) else _number(str(truth))
        given = answer_in(_text(completion))
        rewards.append(None if expected is None else right if given == expected else wrong)
    return rewards


def _text(completion: Any) -> str:
    """Return what the policy said: a text, or the last message of a conversation."""
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else ""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return str(content or "")


def _number(text: str) -> Decimal | None:
    """Return the number that a text begins with."""
    text = text.lstrip(" \t*$\\({[=:")
    found = _NUMBER.match(text)
    if found is None or _GOES_ON.match(text, found.end()):
        return None
    value = Decimal(found["digits"].replace(",", "") + (found["exponent"] or ""))
    return -value if {"-", "\u2212"} & {found["sign"], found["late"]} else value
