"""Rows of Alpaca, ShareGPT and ChatML become what TRL reads, and a row that is none of them is named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner.tests.samples import plan_of

from stoker.contract.exits import ExitCode, RunError
from stoker.frameworks.trl.dataset_formats import COLUMNS, METHODS, BadRowError, converted, formats_of
from stoker.frameworks.trl.flags import METHODS as ALL_METHODS
from stoker.frameworks.trl.flags import flag_table

USER = {"role": "user", "content": "q"}
ASSISTANT = {"role": "assistant", "content": "a"}
WORSE = {"role": "assistant", "content": "b"}
SYSTEM = {"role": "system", "content": "s"}
HUMAN, GPT, BAD_GPT = {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}, {"from": "gpt", "value": "b"}
PAIR = {"chosen": [ASSISTANT], "rejected": [WORSE]}
ASKED = {"prompt": [USER], **PAIR}


@pytest.mark.parametrize(
    ("name", "method", "row", "made"),
    [
        ("alpaca", "sft", {"instruction": "q", "output": "a"}, {"prompt": [USER], "completion": [ASSISTANT]}),
        (
            "alpaca",
            "sft",
            {"instruction": "do", "input": "this", "output": "a", "system": "s", "history": [["q", "a"]], "text": "x"},
            {
                "prompt": [SYSTEM, USER, ASSISTANT, {"role": "user", "content": "do\n\nthis"}],
                "completion": [ASSISTANT],
            },
        ),
        (
            "alpaca",
            "sft",
            {"instruction": "", "input": "q", "output": "", "system": None, "history": None},
            {"prompt": [USER], "completion": [{**ASSISTANT, "content": ""}]},
        ),
        ("alpaca", "dpo", {"instruction": "q", "input": None, "chosen": "a", "rejected": "b"}, ASKED),
        ("sharegpt", "sft", {"conversations": [HUMAN, GPT], "id": 3}, {"messages": [USER, ASSISTANT]}),
        (
            "sharegpt",
            "sft",
            {"system": "s", "conversations": [HUMAN, {"from": "observation", "value": "o"}, GPT]},
            {"messages": [SYSTEM, USER, {"role": "tool", "content": "o"}, ASSISTANT]},
        ),
        ("sharegpt", "dpo", {"conversations": [HUMAN], "chosen": GPT, "rejected": BAD_GPT}, ASKED),
        ("sharegpt", "dpo", {"conversations": [HUMAN], "chosen": [GPT], "rejected": "b"}, ASKED),
        (
            "sharegpt",
            "dpo",
            {"chosen": [HUMAN, GPT], "rejected": [HUMAN, BAD_GPT]},
            {"chosen": [USER, ASSISTANT], "rejected": [USER, WORSE]},
        ),
        ("chatml", "sft", {"messages": [USER, ASSISTANT]}, {"messages": [USER, ASSISTANT]}),
        ("chatml", "sft", {"conversations": [USER, ASSISTANT]}, {"messages": [USER, ASSISTANT]}),
        ("chatml", "dpo", {"messages": [USER], **PAIR}, ASKED),
        # As the Hub's preference sets are: the messages repeat the chosen conversation, and are not the question.
        (
            "chatml",
            "dpo",
            {"messages": [USER, ASSISTANT], "chosen": [USER, ASSISTANT], "rejected": [USER, WORSE]},
            {"chosen": [USER, ASSISTANT], "rejected": [USER, WORSE]},
        ),
    ],
)
def test_a_row_becomes_what_trl_reads(name: str, method: str, row: dict[str, Any], made: dict[str, Any]) -> None:
    assert converted(name, method, row) == made


@pytest.mark.parametrize(
    ("name", "method", "row", "problem"),
    [
        ("alpaca", "sft", {"instruction": "q", "output": None}, "output must be text: None"),
        ("alpaca", "sft", {"instruction": 7, "output": "a"}, "instruction must be text: 7"),
        ("alpaca", "sft", {"instruction": "", "input": "", "output": "a"}, "instruction and input are empty"),
        ("alpaca", "sft", {"instruction": "q", "output": "a", "history": ["q"]}, "history must hold pairs"),
        ("alpaca", "sft", {"instruction": "q", "output": "a", "history": 5}, "history must hold pairs"),
        ("alpaca", "dpo", {"instruction": "q", "chosen": "a", "rejected": ["b"]}, "rejected must be text: ['b']"),
        ("sharegpt", "sft", {"conversations": "q"}, "conversations must be a list of turns: 'q'"),
        ("sharegpt", "sft", {"conversations": []}, "conversations must be a list of turns: []"),
        ("sharegpt", "sft", {"conversations": None}, "conversations must be a list of turns: None"),
        (
            "sharegpt",
            "sft",
            {"conversations": [HUMAN, {"from": "bot", "value": "a"}]},
            "turn 2 of conversations has `from` 'bot', which must be one of human, user, gpt, assistant, system, tool,",
        ),
        ("sharegpt", "sft", {"conversations": [USER]}, "turn 1 of conversations must have `from` and `value`: {'role'"),
        ("sharegpt", "sft", {"conversations": [{"from": "gpt", "value": None}]}, "must have text in `value`: None"),
        ("sharegpt", "dpo", {"conversations": [HUMAN], "chosen": GPT}, "rejected must be a list of turns: None"),
        ("sharegpt", "dpo", {"chosen": "a", "rejected": "b"}, "conversations must be a list of turns: None"),
        ("chatml", "sft", {"messages": [HUMAN]}, "turn 1 of messages must have `role` and `content`"),
        ("chatml", "sft", {"messages": [{"role": "human", "content": "q"}]}, "has `role` 'human'"),
        ("chatml", "sft", {"messages": [{"role": ["user"], "content": "q"}]}, "has `role` ['user']"),
        ("chatml", "sft", {"messages": [{"role": "assistant", "content": None}]}, "neither `content` nor `tool_calls`"),
        ("chatml", "sft", {"messages": [{"role": "user", "content": 3}]}, "must have text in `content`: 3"),
        ("sharegpt", "dpo", {"chosen": [HUMAN, GPT], "rejected": "b"}, "must both begin with the question"),
        ("chatml", "dpo", PAIR, "messages must be a list of turns: None"),
    ],
)
def test_a_row_of_another_form_says_what_is_wrong(name: str, method: str, row: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadRowError) as refused:
        converted(name, method, row)
    assert problem in str(refused.value)


def test_a_conversation_has_one_system_message() -> None:
    own = {"from": "system", "value": "own"}
    messages = converted("sharegpt", "sft", {"system": "row's", "conversations": [own, HUMAN, GPT]})["messages"]
    assert [m["content"] for m in messages if m["role"] == "system"] == ["own"]


def test_long_values_are_cut() -> None:
    with pytest.raises(BadRowError) as refused:
        converted("alpaca", "sft", {"instruction": "q", "output": ["x" * 500]})
    assert len(str(refused.value)) < 100


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["from", "value", "role", "content", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = ["instruction", "input", "output", "system", "history", "conversations", "messages", "chosen", "rejected"]


@given(st.sampled_from([*COLUMNS]), st.sampled_from(METHODS), st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_no_row_ends_in_a_traceback(name: str, method: str, row: dict[str, Any]) -> None:
    try:
        made = converted(name, method, row)
    except BadRowError:
        return
    for messages in made.values():
        assert messages
        assert all({"role", "content"} <= message.keys() for message in messages)


def test_formats_are_known_by_their_columns() -> None:
    assert formats_of("sft", {"instruction": "text", "output": "text"}) == ["alpaca"]
    assert formats_of("sft", {"conversations": "messages"}) == ["sharegpt", "chatml"]
    assert formats_of("dpo", {"instruction": "text", "output": "text"}) == []
    assert formats_of("kto", {"instruction": "text", "output": "text"}) == []


def test_the_flag_is_stokers_so_trl_never_sees_it() -> None:
    plan = plan_of("--dataset_format", "alpaca")
    assert "dataset_format" in {setting.name for setting in plan.settings}
    assert not [word for word in plan.trainer_argv if "dataset_format" in word]
    assert plan.fingerprint["data"]["dataset_format"] == "alpaca"


def test_the_flag_belongs_to_sft_and_dpo() -> None:
    assert {method for method in ALL_METHODS if "dataset_format" in flag_table(method).flags} == {*METHODS}


@pytest.mark.parametrize(
    ("args", "config", "problem"),
    [
        (("--dataset_format", "alpacca"), None, "alpaca"),
        (("trl.scripts.kto", "--dataset_format", "alpaca"), None, "--dataset_format is a flag of sft, dpo"),
        (
            ("--config", "/c", "--dataset_format", "alpaca"),
            {"datasets": [{"path": "a/b"}]},
            "--dataset_format (args) is for --dataset_name, not for a mixture (datasets): leave one out",
        ),
    ],
)
def test_what_cannot_be_converted_is_refused(args: tuple[str, ...], config: dict[str, Any], problem: str) -> None:
    with pytest.raises(RunError) as refused:
        plan_of(*args, config=config)
    assert refused.value.code is ExitCode.USAGE
    assert problem in refused.value.message
