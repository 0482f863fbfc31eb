"""A checkpoint keeps the rollouts, and only what holds together is read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.contract.exits import ExitCode, RunError
from stoker.rollouts.state import STATE, RolloutState, read_state

KEPT = RolloutState(
    step=3,
    batch=2,
    rows=50,
    seed=42,
    frontier=4,
    above=(5, 8),
    in_flight=((4, 2), (6, 2), (7, 3)),
    version=3,
    depth=2,
    staleness=4,
)


def test_what_is_kept_is_read_back(tmp_path: Path) -> None:
    KEPT.write(tmp_path)
    assert read_state(tmp_path) == KEPT
    early = replace(KEPT, step=0, frontier=0, above=(), in_flight=(), version=None, seed=-1)
    early.write(tmp_path)
    assert read_state(tmp_path) == early


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "has schema 2, but this image reads 1"),
        ({"step": 4}, "lists 6 groups as trained, but 4 steps train 2 each"),
        ({"step": "3"}, "has step '3', which is not a count"),
        ({"batch": True}, "has batch True"),
        ({"depth": -1}, "has depth -1"),
        ({"frontier": 6, "above": [5, 8]}, "above the frontier"),
        ({"above": [8, 5]}, "above the frontier"),
        ({"above": [4, 8]}, "above the frontier"),
        ({"above": [5, 5]}, "above the frontier"),
        ({"above": None}, "above the frontier"),
        ({"in_flight": [[5, 2]]}, "in in_flight"),
        ({"in_flight": [[3, 2]]}, "in in_flight"),
        ({"in_flight": [[6]]}, "in in_flight"),
        ({"in_flight": 6}, "in in_flight"),
        ({"version": 1.5}, "has version 1.5"),
        (
            {"more": 1},
            "should have above, batch, depth, frontier, in_flight, rows, schema, seed, staleness, step",
        ),
    ],
)
def test_what_does_not_hold_together_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    KEPT.write(tmp_path)
    path = tmp_path / STATE
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(RunError) as refused:
        read_state(tmp_path)
    assert refused.value.code is ExitCode.CONFIG
    assert said in refused.value.message
    assert str(path) in refused.value.message
    assert "delete this checkpoint" in refused.value.message


@pytest.mark.parametrize("text", [None, "{", "[]", '"x"', "{}"])
def test_a_file_that_is_missing_or_damaged_is_refused(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / STATE).write_text(text)
    with pytest.raises(RunError) as refused:
        read_state(tmp_path)
    assert refused.value.code is ExitCode.CONFIG


def test_a_run_with_other_groups_or_data_does_not_go_on() -> None:
    KEPT.require(batch=2, rows=50, seed=42)
    with pytest.raises(RunError, match="groups per step 2, now 4; rows of data 50, now 49") as refused:
        KEPT.require(batch=4, rows=49, seed=42)
    assert refused.value.code is ExitCode.CONFIG
    with pytest.raises(RunError, match="seed 42, now 1"):
        KEPT.require(batch=2, rows=50, seed=1)
