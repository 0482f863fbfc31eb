"""Data sets as other trainers expect them, and how each row becomes one that TRL reads. Pure.

TRL 1.16 reads ChatML (`messages`) in SFT. It renames the keys of ShareGPT's turns there, but keeps roles such as
`human`, which chat templates do not know; it has nothing for Alpaca, and nothing of this for DPO.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stoker.plan.arguments import Flag

FLAG = "dataset_format"
METHODS = ("sft", "dpo")
_ANSWERS = ("chosen", "rejected")
# Where a row of a format may hold the conversation; the first that it has counts.
_CONVERSATIONS = {"sharegpt": ("conversations",), "chatml": ("messages", "conversations")}
# Format → method → the sets of columns that it can be read from.
COLUMNS: Mapping[str, Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "alpaca": {"sft": (("instruction", "output"),), "dpo": (("instruction", *_ANSWERS),)},
    **{
        name: {"sft": tuple((column,) for column in columns), "dpo": (_ANSWERS,)}
        for name, columns in _CONVERSATIONS.items()
    },
}
# What TRL reads beside the conversation; all other columns go.
KEPT = ("tools", "chat_template_kwargs", "images", "image")

_CHATML_ROLES = {role: role for role in ("system", "developer", "user", "assistant", "tool")}
_SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}

Row = Mapping[str, Any]
Message = dict[str, Any]


class BadRowError(Exception):
    """A row is not of the format; the message says what is wrong with it."""


def own_flags(method: str) -> dict[str, Flag]:
    """Return the flags that Stoker adds to a method's own."""
    if method not in METHODS:
        return {}
    what = "How the data set's columns are laid out, if not as TRL reads them. Stoker turns each row into messages."
    return {FLAG: Flag(FLAG, "str", choices=tuple(COLUMNS), help=what)}


def formats_of(method: str, columns: Mapping[str, object]) -> list[str]:
    """Return the formats whose columns a data set has."""
    return [
        name
        for name, methods in COLUMNS.items()
        if any({*needed} <= columns.keys() for needed in methods.get(method, ()))
    ]


def converted(name: str, method: str, row: Row) -> dict[str, Any]:
    """Return the columns that TRL reads, made from a row of a format.

    Args:
        name: the format.
        method: the training method.
        row: the row.

    Raises:
        BadRowError: the row is not of the format.
    """
    if name == "alpaca":
        answers = _ANSWERS if method == "dpo" else ("output",)
        made = {answer: [{"role": "assistant", "content": _text(row, answer)}] for answer in answers}
        if method == "sft":
            made["completion"] = made.pop("output")
        return {"prompt": _question(row), **made}
    if method == "sft":
        return {"messages": _with_system(row, _conversation(name, row))}
    pair = {answer: _answer(name, row, answer) for answer in _ANSWERS}
    whole = {messages[0]["role"] != "assistant" for messages in pair.values()}
    if len(whole) == 2:
        raise BadRowError("chosen and rejected must both begin with the question, or both with the answer")
    if whole == {True}:
        return {answer: _with_system(row, messages) for answer, messages in pair.items()}  # TRL finds where they part
    return {"prompt": _with_system(row, _conversation(name, row)), **pair}


def _question(row: Row) -> list[Message]:
    asked = "\n\n".join(part for part in (_text(row, "instruction"), _optional(row, "input")) if part)
    if not asked:
        raise BadRowError("instruction and input are empty")
    messages: list[Message] = []
    history = row.get("history") or []
    for pair in history if isinstance(history, list | tuple) else [history]:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise BadRowError(f"history must hold pairs of question and answer: {_shown(pair)}")
        messages += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    return _with_system(row, [*messages, {"role": "user", "content": asked}])


def _with_system(row: Row, messages: list[Message]) -> list[Message]:
    """Return a conversation that begins with the row's system message, unless it has one of its own."""
    text = _optional(row, "system")
    if not text or messages[0]["role"] == "system":
        return messages
    return [{"role": "system", "content": text}, *messages]


def _optional(row: Row, column: str) -> str:
    return "" if row.get(column) is None else _text(row, column)


def _text(row: Row, column: str) -> str:
    value = row.get(column)
    if not isinstance(value, str):
        raise BadRowError(f"{column} must be text: {_shown(value)}")
    return value


def _conversation(name: str, row: Row) -> list[Message]:
    columns = _CONVERSATIONS[name]
    column = next((column for column in columns if row.get(column) is not None), columns[0])
    return _turns(name, column, row.get(column))


def _answer(name: str, row: Row, column: str) -> list[Message]:
    """Return one answer, which a row may hold as text, as one turn, or as several."""
    value = row.get(column)
    if isinstance(value, str):
        return [{"role": "assistant", "content": value}]
    return _turns(name, column, [value] if isinstance(value, dict) else value)


def _turns(name: str, column: str, turns: Any) -> list[Message]:
    if not isinstance(turns, list) or not turns:
        raise BadRowError(f"{column} must be a list of turns: {_shown(turns)}")
    messages = []
    for number, turn in enumerate(turns, 1):
        try:
            messages.append(_READERS[name](turn))
        except BadRowError as error:
            raise BadRowError(f"turn {number} of {column} {error}") from None
    return messages


def _read_sharegpt(turn: Any) -> Message:
    role = _role(turn, "from", "value", _SHAREGPT_ROLES)
    if not isinstance(turn["value"], str):
        raise BadRowError(f"must have text in `value`: {_shown(turn['value'])}")
    return {"role": role, "content": turn["value"]}


def _read_chatml(turn: Any) -> Message:
    _role(turn, "role", "content", _CHATML_ROLES)
    if turn["content"] is None and not turn.get("tool_calls"):
        raise BadRowError("has neither `content` nor `tool_calls`")
    if not isinstance(turn["content"], str | list | None):
        raise BadRowError(f"must have text in `content`: {_shown(turn['content'])}")
    return dict(turn)


def _role(turn: Any, speaker: str, said: str, roles: Mapping[str, str]) -> str:
    if not isinstance(turn, dict) or not {speaker, said} <= turn.keys():
        raise BadRowError(f"must have `{speaker}` and `{said}`: {_shown(turn)}")
    role = turn[speaker]
    if not isinstance(role, str) or role not in roles:
        raise BadRowError(f"has `{speaker}` {_shown(role)}, which must be one of {', '.join(roles)}")
    return roles[role]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


_READERS: Mapping[str, Callable[[Any], Message]] = {"sharegpt": _read_sharegpt, "chatml": _read_chatml}
