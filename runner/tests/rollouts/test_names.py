"""How users name functions."""

from __future__ import annotations

import pytest

from stoker.contract.exits import ExitCode, RunError
from stoker.rollouts.names import REWARDS, TOOLS, environments_among, named
from stoker.rollouts.rewards import functions_among


@pytest.mark.parametrize(
    ("text", "module", "name", "arguments"),
    [
        ("my.rewards:exact", "my.rewards", "exact", None),
        ("my.rewards:Judge.exact", "my.rewards", "Judge.exact", None),
        ("my_lib.rewards.custom_reward", "my_lib.rewards", "custom_reward", None),
        ("my:make(right=1.0,wrong=-0.2)", "my", "make", {"right": 1.0, "wrong": -0.2}),
        ("my:Judge()", "my", "Judge", {}),
        ("think_format_reward", "trl.rewards", "think_format_reward", None),
        (
            "get_soft_overlong_punishment",
            "trl.rewards",
            "get_soft_overlong_punishment",
            {"max_completion_len": 1280, "soft_punish_cache": 256},
        ),
        ("get_cosine_scaled_reward(max_len=9)", "trl.rewards", "get_cosine_scaled_reward", {"max_len": 9}),
        ("math_answer", "stoker.rollouts.verifiers", "math_answer", None),
        ("get_math_answer", "stoker.rollouts.verifiers", "get_math_answer", {}),
        ("get_math_answer(wrong=0.0)", "stoker.rollouts.verifiers", "get_math_answer", {"wrong": 0.0}),
    ],
)
def test_a_name_says_where_the_function_is(text: str, module: str, name: str, arguments: object) -> None:
    found = named(REWARDS, text)
    assert (found.module, found.name, found.arguments) == (module, name, arguments)


@pytest.mark.parametrize(
    "text", ["exact", "", "my rewards:f", "my:f:g", "folder/rewards.py", "my:", ":f", "my:f(x)", "my:f(a=b)"]
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(RunError) as refused:
        named(TOOLS, text)
    assert refused.value.code is ExitCode.USAGE
    assert str(refused.value).startswith(f"--tools {text}")
    assert ": write " in str(refused.value)


def test_all_wrong_names_are_told_at_once_and_addresses_are_no_functions() -> None:
    assert functions_among(["math_answer", "http://judge:8000"]) == ("math_answer",)
    with pytest.raises(RunError, match=r"--reward_funcs one[^\n]*\n--reward_funcs two"):
        functions_among(["one", "math_answer", "two"])


def test_environments_have_names_where_there_are_several() -> None:
    assert environments_among(["my:Room"]) == {"": "my:Room"}
    assert environments_among(["my:at(url='http://a?b=c')"]) == {"": "my:at(url='http://a?b=c')"}
    assert environments_among(["a=my:Room", "b=my:at(x=1)"]) == {"a": "my:Room", "b": "my:at(x=1)"}


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["my:Room", "my:Hall"], "--environment_factory my:Room and my:Hall have no name: write name=module:Class"),
        (["a=my:Room", "a=my:Hall"], "--environment_factory my:Room and my:Hall are both called a: write"),
        (
            ["a=my:Room", "my:Hall"],
            "--environment_factory my:Hall is one of several: give it a name, as in name=my:Hall",
        ),
    ],
)
def test_environments_that_rows_could_not_choose_are_refused(texts: list[str], told: str) -> None:
    with pytest.raises(RunError) as refused:
        environments_among(texts)
    assert refused.value.code is ExitCode.USAGE
    assert told in str(refused.value)
