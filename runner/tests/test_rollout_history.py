"""What judges a killed run of asynchronous GRPO finds what it is there for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from runner.tests.rollout_history import Trained

# Five rows, two of them in each of three steps.
WANTED = Trained(steps=3, groups=2, samples=2, rows=5, staleness=1)
ROWS = [[(0, 3), (0, 1)], [(0, 0), (0, 4)], [(0, 2), (1, 1)]]
STATE = {"step": 3, "frontier": 6, "above": []}


def metrics(step: int, histogram: tuple[int, ...] = (4,)) -> dict[str, Any]:
    return {"step": step, "staleness/histogram": histogram, "staleness/max": len(histogram) - 1}


def shown(step: int, place: tuple[int, int], version: int | None = None) -> dict[str, Any]:
    samples = [{"version": step if version is None else version}] * 2
    return {"step": step, "epoch": place[0], "row": place[1], "samples": samples}


def text(lines: list[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(line)}\n" for line in lines)


GOOD = [shown(step, place) for step, places in enumerate(ROWS) for place in places]
STEPS = [metrics(1), metrics(2, (2, 2)), metrics(3)]


@pytest.mark.parametrize(
    "samples", [GOOD, [*GOOD[:4], *GOOD[2:]], [*GOOD[:3], shown(1, (0, 2)), *GOOD]], ids=["once", "twice", "anew"]
)
def test_a_step_that_was_done_again_counts_once(samples: list[dict[str, Any]]) -> None:
    assert WANTED.flaws(text(STEPS), text(samples), STATE) == []


@pytest.mark.parametrize(
    ("steps", "samples", "state", "flaw"),
    [
        ([STEPS[0], *STEPS], GOOD, STATE, "metrics of steps"),
        (STEPS[:2], GOOD, STATE, "metrics of steps"),
        ([metrics(1, (3,)), *STEPS[1:]], GOOD, STATE, "step 1 trained 3 samples"),
        ([metrics(1, (3, 0, 1)), *STEPS[1:]], GOOD, STATE, "step 1 trained samples that are too old"),
        (STEPS, [*GOOD[:5], shown(2, (0, 3))], STATE, "row 3 of epoch 0 was trained 2 times"),
        (STEPS, [*GOOD[:5], shown(2, (1, 2)), shown(2, (1, 1))], STATE, "rows trained by epoch"),
        (STEPS, GOOD[:4], STATE, "samples of steps"),
        (STEPS, [*GOOD[:5], shown(2, (1, 1), version=0)], STATE, "step 2 trained samples of versions [0, 2]"),
        (STEPS, GOOD, {**STATE, "frontier": 5, "above": [6]}, "the last checkpoint"),
    ],
)
def test_flaws_are_found(steps: Any, samples: Any, state: Any, flaw: str) -> None:
    assert any(flaw in found for found in WANTED.flaws(text(steps), text(samples), state))
