"""Which kind of rows training gets, and what is wrong with them. Pure: it needs no tokenizer and no model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from stoker.contract.exits import ExitCode
from stoker.lab.errors import LabError, refuse

Row = Mapping[str, Any]

# How many wrong rows one message names.
_SHOWN = 3


class RowKind(Enum):
    """The kinds of rows, each by the columns that it needs."""

    TEXT = ("text",)
    MESSAGES = ("messages",)
    COMPLETION = ("prompt", "completion")
    PREFERENCE = ("chosen", "rejected")

    @property
    def method(self) -> str:
        """The training method for such rows: `sft` or `dpo`."""
        return "dpo" if self is RowKind.PREFERENCE else "sft"

    def read_of(self, row: Row) -> dict[str, Any]:
        """Return the columns of a row that it is trained on: TRL would read others too, such as `text` or `input_ids`.

        Args:
            row: a row of this kind.
        """
        prompt = ("prompt",) if self is RowKind.PREFERENCE else ()
        read = {name: row[name] for name in (*prompt, *self.value) if name in row}
        if is_conversation(row.get(self.value[-1])):
            read |= {name: row[name] for name in _TEMPLATE if row.get(name) is not None}
        return read


def with_equal_columns(rows: Sequence[Row], kind: RowKind) -> list[dict[str, Any]]:
    """Return what each row is trained on, with the same columns in all: a data set has no others than its first row.

    Args:
        rows: rows of the kind.
        kind: their kind.
    """
    read = [kind.read_of(row) for row in rows]
    beside = {name: nothing for name, (nothing, _) in _TEMPLATE.items() if any(name in row for row in read)}
    return [row | {name: row.get(name, nothing) for name, nothing in beside.items()} for row in read]


def as_rows(data: object) -> list[Row]:
    """Return rows as a list of mappings.

    Args:
        data: a list of rows, a Hugging Face data set, or anything else that yields rows.

    Raises:
        LabError: it does not yield rows, or it is empty.
    """
    if isinstance(data, str | bytes | Mapping) or not isinstance(data, Iterable):
        raise LabError(
            f'the rows are a {type(data).__name__}: write a list of rows, such as [{{"text": "…"}}]', ExitCode.BAD_DATA
        )
    rows: list[Any] = list(data)
    if not rows:
        raise LabError("there are no rows: give one or more to train or evaluate on", ExitCode.BAD_DATA)
    wrong = [f"row {number}" for number, row in enumerate(rows) if not isinstance(row, Mapping)]
    if wrong:
        raise LabError(
            f"{some(wrong)} must be a mapping of columns to values, such as {{'text': '…'}}, "
            f"not {type(next(row for row in rows if not isinstance(row, Mapping))).__name__}",
            ExitCode.BAD_DATA,
        )
    return rows


def kind_of(rows: Sequence[Row], kinds: Sequence[RowKind] = tuple(RowKind)) -> RowKind:
    """Return the kind of rows, all of which must be of it.

    Args:
        rows: one or more rows.
        kinds: the kinds to choose from.

    Raises:
        LabError: names the rows that are wrong, and the columns to write.
    """
    # What has an answer that is wanted and one that is not is a preference, whatever else it has.
    order = [kind for kind in (RowKind.PREFERENCE, RowKind.COMPLETION, RowKind.MESSAGES, RowKind.TEXT) if kind in kinds]
    found = next((kind for kind in order if {*kind.value} <= rows[0].keys()), None)
    if found is None:
        wanted = ", or ".join(" and ".join(kind.value) for kind in kinds)
        raise LabError(
            f"the rows have the columns {', '.join(map(str, rows[0])) or 'of nothing'}, but need {wanted}: "
            "rename the columns",
            ExitCode.BAD_DATA,
        )
    refuse(_problems(rows, found), ExitCode.BAD_DATA)
    return found


def is_conversation(value: object) -> bool:
    """Return whether a column's value is a list of messages, not text."""
    return not isinstance(value, str)


def _problems(rows: Sequence[Row], kind: RowKind) -> Iterator[str]:
    names = [*dict.fromkeys(name for row in rows for name in kind.read_of(row))]
    columns = [name for name in names if name not in _TEMPLATE]
    missing = {name: [f"row {number}" for number, row in enumerate(rows) if name not in row] for name in columns}
    for name, lacking in missing.items():
        if lacking:
            yield f"{some(lacking)} has no {name}, which other rows have: write it in every row"
    if any(missing.values()):
        return
    either = kind in (RowKind.COMPLETION, RowKind.PREFERENCE)
    wants_messages = {name: kind is RowKind.MESSAGES or (either and is_conversation(rows[0][name])) for name in columns}
    if len({*wants_messages.values()}) > 1:
        yield (
            f"row 0 has text in {', '.join(n for n, is_list in wants_messages.items() if not is_list)} and messages in "
            f"{', '.join(n for n, is_list in wants_messages.items() if is_list)}: write the same in all of them"
        )
        return
    checks: dict[str, Callable[[object], str]] = {name: check for name, (_, check) in _TEMPLATE.items()}
    checks |= {name: messages_problem if is_list else text_problem for name, is_list in wants_messages.items()}
    for name in names:
        wrong = [(number, checks[name](row.get(name))) for number, row in enumerate(rows)]
        for text in dict.fromkeys(text for _, text in wrong if text):
            yield f"{name} of {some([f'row {number}' for number, found in wrong if found == text])} {text}"


def tools_problem(value: object) -> str:
    """Return what is wrong with a row's tools; empty if nothing is."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return "is text that is not JSON: write a list of tools"
    if found is None or (isinstance(found, Sequence) and not isinstance(found, str)):
        return ""
    return f"must be a list of tools, not {type(found).__name__}"


def settings_problem(value: object) -> str:
    """Return what is wrong with a row's settings of the chat template; empty if nothing is."""
    if value is None or isinstance(value, Mapping):
        return ""
    return f"must be a mapping of settings to values, not {type(value).__name__}"


def text_problem(value: object) -> str:
    """Return what is wrong with a column's text; empty if nothing is."""
    if not isinstance(value, str):
        return f"must be text like the others, not {type(value).__name__}"
    return "" if value else "is empty: write a text, or leave the row out"


def messages_problem(value: object) -> str:
    """Return what is wrong with a column's messages; empty if nothing is."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return f"must be a list of messages, not {type(value).__name__}"
    if not value:
        return "is empty: write one or more messages, or leave the row out"
    good = all(
        isinstance(turn, Mapping) and isinstance(turn.get("role"), str) and ("content" in turn or "tool_calls" in turn)
        for turn in value
    )
    return "" if good else "must hold messages with role and content"


def some(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


# What a chat template gets besides the messages: what stands for nothing, and what finds its faults.
_TEMPLATE: dict[str, tuple[Any, Callable[[object], str]]] = {
    "tools": (None, tools_problem),
    "chat_template_kwargs": ({}, settings_problem),
}
