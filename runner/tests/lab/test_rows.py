"""Rows are told by their columns, and what is wrong with them is said before anything is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.contract.exits import ExitCode
from stoker.lab import LabError
from stoker.lab.rows import RowKind, as_rows, kind_of, with_equal_columns

TURN = [{"role": "user", "content": "2+3="}]
ANSWER = [{"role": "assistant", "content": "5"}]
PREFERENCE = {"prompt": "2+3=", "chosen": "5", "rejected": "6"}


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"text": "2+3=5"}, RowKind.TEXT),
        ({"prompt": "2+3=", "completion": "5"}, RowKind.COMPLETION),
        ({"prompt": TURN, "completion": ANSWER}, RowKind.COMPLETION),
        ({"messages": TURN + ANSWER}, RowKind.MESSAGES),
        (PREFERENCE, RowKind.PREFERENCE),
        ({"chosen": TURN + ANSWER, "rejected": TURN}, RowKind.PREFERENCE),
        ({"text": "left out", "prompt": "2+3=", "chosen": "5", "rejected": "6"}, RowKind.PREFERENCE),
    ],
)
def test_a_kind_is_told_by_its_columns(row: dict[str, Any], kind: RowKind) -> None:
    assert kind_of(as_rows([row])) is kind


@pytest.mark.parametrize("tools", [None, [], [{"name": "add"}], '[{"name": "add"}]', "null"])
def test_a_row_may_have_tools(tools: Any) -> None:
    assert kind_of([{"messages": TURN, "tools": tools, "chat_template_kwargs": {}}]) is RowKind.MESSAGES


@pytest.mark.parametrize(
    ("kind", "said", "names"),
    [
        (RowKind.TEXT, "2+3=5", "text"),
        (RowKind.MESSAGES, TURN, "messages tools chat_template_kwargs"),
        (RowKind.COMPLETION, "5", "prompt completion"),
        (RowKind.COMPLETION, TURN, "prompt completion tools chat_template_kwargs"),
        (RowKind.PREFERENCE, TURN, "prompt chosen rejected tools chat_template_kwargs"),
    ],
)
def test_only_the_columns_of_its_kind_are_read_of_a_row(kind: RowKind, said: Any, names: str) -> None:
    columns = "text messages prompt completion chosen rejected tools chat_template_kwargs input_ids labels images"
    assert [*kind.read_of(dict.fromkeys(columns.split(), said))] == names.split()
    assert [*kind.read_of({**dict.fromkeys(kind.value, said), "id": 1})] == [*kind.value]


def test_rows_get_equal_columns() -> None:
    """TRL takes the columns of the first row, and loses what only later rows have."""
    tools, settings = [{"name": "add"}], {"brief": True}
    rows: list[dict[str, Any]] = [
        {"messages": TURN},
        {"messages": TURN, "tools": tools},
        {"messages": TURN, "tools": None, "chat_template_kwargs": settings},
    ]
    assert kind_of(rows) is RowKind.MESSAGES
    assert with_equal_columns(rows, RowKind.MESSAGES) == [
        {"messages": TURN, "tools": None, "chat_template_kwargs": {}},
        {"messages": TURN, "tools": tools, "chat_template_kwargs": {}},
        {"messages": TURN, "tools": None, "chat_template_kwargs": settings},
    ]
    # To a text they are columns like any other.
    assert kind_of([{"text": "a", "tools": "calculator"}, {"text": "b"}]) is RowKind.TEXT


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([], "there are no rows"),
        ("text", "the rows are a str"),
        ({"text": "a"}, "the rows are a dict"),
        (3, "the rows are a int"),
        ([{"text": "a"}, "b"], "row 1 must be a mapping"),
        ([{}], "the rows have the columns of nothing, but need text, or messages, or prompt and completion, or"),
        ([{"question": "a", "answer": "b"}], "the rows have the columns question, answer, but need text"),
        ([{"prompt": "a"}], "the rows have the columns prompt, but need"),
        ([{"text": "a"}, {"prompt": "b"}], "row 1 has no text, which other rows have"),
        ([{"text": "a"}, {"text": ""}, {"text": ""}], "text of row 1, row 2 is empty"),
        ([{"text": "a"}, {"text": None}], "text of row 1 must be text like the others, not NoneType"),
        ([{"text": "a"}, {"text": TURN}], "text of row 1 must be text like the others, not list"),
        ([{"prompt": "a", "completion": ANSWER}], "row 0 has text in prompt and messages in completion"),
        ([{"messages": []}], "messages of row 0 is empty"),
        ([{"messages": "a"}], "messages of row 0 must be a list of messages, not str"),
        ([{"messages": [{"content": "a"}]}], "messages of row 0 must hold messages with role and content"),
        ([{"chosen": "a", "rejected": "b"}, PREFERENCE], "row 0 has no prompt, which other rows have"),
        ([{"messages": TURN, "tools": "no JSON"}], "tools of row 0 is text that is not JSON"),
        ([{"messages": TURN, "tools": {"name": "a"}}], "tools of row 0 must be a list of tools"),
        ([{"messages": TURN, "chat_template_kwargs": "a"}], "chat_template_kwargs of row 0 must be a mapping"),
    ],
)
def test_wrong_rows_are_refused(rows: Any, told: str) -> None:
    with pytest.raises(LabError) as caught:
        kind_of(as_rows(rows))
    assert str(caught.value).startswith(told)
    assert caught.value.code is ExitCode.BAD_DATA


def test_many_wrong_rows_make_one_line() -> None:
    with pytest.raises(LabError, match=r"^text of row 1, row 2, row 3 and 6 more is empty") as caught:
        kind_of([{"text": "a"}, *[{"text": ""}] * 9])
    assert len(str(caught.value).splitlines()) == 1
