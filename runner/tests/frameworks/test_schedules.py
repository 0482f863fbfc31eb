"""Schedules of the learning rate: what they do not take is refused before the start; what they need is asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from runner.tests.samples import plan_of

from stoker.contract.exits import ExitCode, RunError

EVALUATED = ("--eval_strategy", "steps")


def given(schedule: str, options: dict[str, Any]) -> list[str]:
    """Return the arguments for a schedule with options."""
    return ["--lr_scheduler_type", schedule, "--lr_scheduler_kwargs", json.dumps(options)]


def refusal_of(*args: str, **more: Any) -> str:
    with pytest.raises(RunError) as refused:
        plan_of(*args, **more)
    assert refused.value.code is ExitCode.USAGE
    return refused.value.message


@pytest.mark.parametrize(
    ("schedule", "options", "why"),
    [
        (
            "cosine",
            {"num_cycle": 2},
            "has the key num_cycle, which the schedule cosine does not take: did you mean num",
        ),
        (
            "linear",
            {"num_cycles": 2},
            "which the schedule linear does not take: leave it out, or choose another --lr_sc",
        ),
        ("constant", {"power": 2}, "which the schedule constant does not take: leave it out"),
        ("polynomial", {"x": 2}, "which the schedule polynomial does not take: choose from lr_end, power"),
        ("cosine", {"last_epoch": 3}, "has the key last_epoch, which the schedule cosine does not take"),
        ("cosine", {"num_cycles": "two"}, "has num_cycles 'two': write a number"),
        ("cosine", {"num_cycles": None}, "has num_cycles None: write a number"),
        ("polynomial", {"power": -1}, "has power -1: write 0 or more"),
        ("polynomial", {"lr_end": 1}, "ends at the learning rate 1, which must be below --learning_rate, 2e-05: write"),
        ("polynomial", {"lr_end": 10**400}, "which must be below --learning_rate"),
        ("inverse_sqrt", {"timescale": 0}, "has timescale 0: write a number above 0"),
        ("warmup_stable_decay", {}, "--lr_scheduler_type warmup_stable_decay needs num_decay_steps: write --lr_schedu"),
        ("warmup_stable_decay", {"num_decay_steps": 5, "decay_type": "exp"}, "write one of linear, cosine, 1-sqrt"),
        (
            "cosine_with_min_lr",
            {},
            "needs exactly one of min_lr and min_lr_rate: write --lr_scheduler_kwargs '{\"min_lr",
        ),
        ("cosine_with_min_lr", {"min_lr": 0, "min_lr_rate": 0.1}, "needs exactly one of min_lr and min_lr_rate"),
        ("cosine_warmup_with_min_lr", {"min_lr": None}, "needs exactly one of min_lr and min_lr_rate"),
    ],
)
def test_what_a_schedule_does_not_take_is_refused(schedule: str, options: dict[str, Any], why: str) -> None:
    assert why in refusal_of(*given(schedule, options))


@pytest.mark.parametrize(
    ("schedule", "options", "why"),
    [
        ("reduce_lr_on_plateau", {"mode": "least"}, "has mode 'least': write one of min, max"),
        ("greedy", {"factor": 1.5}, "has factor 1.5: write a number below 1"),
        ("reduce_lr_on_plateau", {"warmup": 1}, "which the schedule reduce_lr_on_plateau does not take"),
    ],
)
def test_schedules_that_look_at_evaluations_have_options_too(schedule: str, options: dict[str, Any], why: str) -> None:
    assert why in refusal_of(*EVALUATED, *given(schedule, options))


def test_a_greedy_schedule_needs_evaluations() -> None:
    assert "--lr_scheduler_type greedy needs evaluations to look at" in refusal_of("--lr_scheduler_type", "greedy")


@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        ("linear", {}),
        ("cosine", {"num_cycles": 2}),
        ("polynomial", {"lr_end": 1e-6, "power": 2.0}),
        ("inverse_sqrt", {"timescale": None}),
        ("cosine_with_min_lr", {"min_lr_rate": 0.1, "min_lr": None}),
        ("warmup_stable_decay", {"num_decay_steps": 5, "warmup_type": "1-sqrt"}),
    ],
)
def test_what_a_schedule_takes_is_taken(schedule: str, options: dict[str, Any]) -> None:
    plan_of(*given(schedule, options))


def test_a_schedule_may_come_from_another_layer_than_its_options() -> None:
    options = {"lr_scheduler_kwargs": {"num_cycle": 2}}
    found = refusal_of("--lr_scheduler_type", "cosine", "--config", "/c", config=options)
    assert "--lr_scheduler_kwargs (config file) has the key num_cycle" in found


def test_of_an_unknown_schedule_nothing_more_is_said() -> None:
    assert "--lr_scheduler_kwargs" not in refusal_of(*given("cosin", {"num_cycles": 2}))
