"""What trainers know of their samplers from the environment."""

from __future__ import annotations

import pytest
from runner.tests.samples import pod, resolve

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.samplers import API_KEY, api_key
from stoker.contract.secrets import hide


def test_the_key_of_the_samplers_is_read_as_a_secret_may_hold_it() -> None:
    assert [api_key(environ) for environ in ({}, {API_KEY: ""}, {API_KEY: " a-key\n"})] == ["", "", "a-key"]


@pytest.mark.parametrize("key", ["a key", "a\r\nHost: b", "a\0b", "schl\u00fcssel"])
def test_what_no_header_can_hold_is_no_key_and_is_not_shown(key: str) -> None:
    with pytest.raises(RunError) as ending:
        api_key({API_KEY: key})
    assert ending.value.code is ExitCode.CONFIG
    assert ending.value.message.startswith("STOKER_SAMPLERS_API_KEY is not a valid key: write one line")
    assert key not in ending.value.message


def test_neither_a_plan_nor_a_log_shows_the_key() -> None:
    flags = ("--samplers", "http://samplers-control:8090", "--reward_funcs", "math_answer", "--use_peft")
    plan = resolve(pod({API_KEY: "a-key-of-the-release"}), ("trl.scripts.grpo_async", *flags))
    assert "a-key-of-the-release" not in str(plan.to_json())
    assert hide("sent a-key-of-the-release", {API_KEY: "a-key-of-the-release"}) == "sent (not shown)"
