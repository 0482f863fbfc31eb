"""Tables, durations and curves, for terminals of any width and for pipes."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner.tests.runs.objects import NOW, jobset, pod, progress, terminated, trainjob, unschedulable

from stoker.runs.run import Run, run_of
from stoker.runs.words import Table, curve, duration, facts_of, list_of, number, pods_of, top_of

AT = datetime.fromisoformat(NOW)
TRAINING = run_of(trainjob(trainerStatus=progress(loss=1.2345678, staleness__mean=2)), jobset(), [pod(), pod(index=1)])
WAITING = run_of(trainjob("wait"), jobset("wait"), [unschedulable("no node", run="wait")])


def test_a_list_is_lines_that_scripts_can_read() -> None:
    assert list_of([TRAINING, WAITING], AT).plain() == [
        "NAME  STATE    DONE  LOSS   LEFT    NODES  RESTARTS  AGE  RUNTIME          REASON",
        "tune  Running  42 %  1.235  3m 20s  2      0         10m  trl-distributed",
        "wait  Pending                       2      0         10m  trl-distributed  Unschedulable",
    ]


@pytest.mark.parametrize(("width", "heads"), [(40, ("NAME", "STATE", "DONE", "LEFT", "REASON")), (200, None)])
def test_a_narrow_terminal_shows_what_matters(width: int, heads: tuple[str, ...] | None) -> None:
    table = list_of([TRAINING, WAITING], AT)
    assert table.fitting(width).heads == (heads or table.heads)


@given(st.integers(10, 300))
def test_a_fitting_table_always_has_the_name(width: int) -> None:
    fits = list_of([TRAINING, WAITING], AT, namespaces=True).fitting(width)
    assert "NAME" in fits.heads
    assert all(len(row) == len(fits.heads) for row in fits.rows)


def test_an_empty_column_is_left_out_on_terminals() -> None:
    assert "REASON" not in list_of([TRAINING], AT).fitting(200).heads
    assert Table(("A",), (), ("A",)).fitting(40).heads == ("A",)


def test_top_shows_the_curve_of_the_loss() -> None:
    lines = top_of([TRAINING], {"uid-tune": [4, 3, 2, 1]}, AT).plain()
    assert "█▆▃▁" in lines[1]


def test_top_shows_all_that_a_run_reports() -> None:
    told = progress(step=4, loss=1.5, tokens_per_second=900, reward=0.5, staleness__mean=2)
    run = run_of(trainjob(trainerStatus=told), jobset(restarts=1), [pod()])
    heads, *rows = top_of([run, WAITING], {}, AT).plain()
    assert heads.split() == [
        *("NAME", "STATE", "DONE", "STEP", "LOSS", "CURVE", "TOKENS/S", "REWARD", "STALE", "LEFT", "RESTARTS", "AGE"),
        "REASON",
    ]
    assert rows[0].split() == ["tune", "Running", "42", "%", "4", "1.5", "900", "0.5", "2", "3m", "20s", "1", "10m"]
    assert rows[1].split() == ["wait", "Pending", "0", "10m", "Unschedulable"]


@pytest.mark.parametrize(
    ("values", "bars"), [([], ""), ([1], "▁"), ([2, 2], "▁▁"), ([0, 7], "▁█"), (list(range(30)), "▁▂▂▃▄▄▅▅▆▇▇█")]
)
def test_a_curve(values: list[float], bars: str) -> None:
    assert curve(values) == bars


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0, "0s"), (59.6, "1m"), (61, "1m 1s"), (3600, "1h"), (7500, "2h 5m"), (90000, "1d 1h")],
)
def test_a_duration(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("value", "text"), [(None, ""), (1.23456, "1.235"), (123456.7, "123457"), (0.0, "0")])
def test_a_number(value: float | None, text: str) -> None:
    assert number(value) == text


def test_the_facts_of_a_run() -> None:
    assert facts_of(TRAINING, AT) == [
        ("run", "tune in namespace ml"),
        ("state", "Running"),
        ("runtime", "trl-distributed (trl), 2 nodes"),
        ("submitted", "2026-11-22T10:00:00Z, 10m ago"),
        ("restarts", "0"),
        ("progress", "42 %, loss 1.235, staleness/mean 2, 3m 20s left, reported 5s ago"),
    ]


def test_a_pod_that_ended_says_how() -> None:
    run: Run = run_of(trainjob(), jobset(), [terminated(64, "first\nstoker: error: wrong")])
    assert pods_of(run).rows[0][-1] == "exit code 64 wrong arguments: stoker: error: wrong"
