"""The metrics of a run: each step once, whatever stops the run or the writing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from runner.tests.samples import check

from stoker.contract.metrics import METRICS
from stoker.rank.metrics import MetricsFile, peak_memory_gib


def lines_in(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics, each as its schema has it."""
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    for line in lines:
        check(line, "metrics-v1")
    return lines


def test_a_resumed_run_drops_the_metrics_of_steps_that_it_does_again(tmp_path: Path) -> None:
    first = MetricsFile(tmp_path, 0)
    for step in (1, 2, 3):
        first.write(step, {"loss": math.nan, "histogram": [1.0, math.inf], "reward": 0.5})
    with (tmp_path / METRICS).open("a") as stream:
        stream.write('{"step": 4, "lo')
    MetricsFile(tmp_path, 2).write(3, {"loss": 1.0})
    lines = lines_in(tmp_path)
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[0] == {"step": 1, "loss": None, "histogram": [1.0, None], "reward": 0.5}
    assert lines[2] == {"step": 3, "loss": 1.0}


def test_what_is_known_later_of_a_step_joins_its_line_and_changes_nothing_in_it(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path, 0)
    file.write(1, {"loss": 2.0})
    file.write(2, {"loss": 1.0, "grad_norm": 0.5})
    file.write(2, {"loss": 9.0, "eval_loss": 3.0})
    file.write(1, {"loss": 7.0})
    assert lines_in(tmp_path) == [
        {"step": 1, "loss": 2.0},
        {"step": 2, "eval_loss": 3.0, "grad_norm": 0.5, "loss": 1.0},
    ]
    # Also after a restart at that very step.
    resumed = MetricsFile(tmp_path, 2)
    resumed.write(2, {"loss": 8.0, "eval_loss": 4.0, "eval_runtime": 1.0})
    resumed.write(3, {"step": 5})
    assert lines_in(tmp_path)[1:] == [
        {"step": 2, "eval_loss": 3.0, "eval_runtime": 1.0, "grad_norm": 0.5, "loss": 1.0}, {"step": 3},
    ]  # fmt: skip


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_kill_in_mid_line_costs_that_line_alone(tmp_path: Path, cut: int) -> None:
    file = MetricsFile(tmp_path, 0)
    for step in (1, 2, 3):
        file.write(step, {"loss": 1.0, "learning_rate": 1e-4})
    path = tmp_path / METRICS
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    complete = whole[:-cut].count(b"\n")
    # The newest checkpoint may be of any step.
    MetricsFile(tmp_path, 3).write(4, {"loss": 0.5})
    assert [line["step"] for line in lines_in(tmp_path)] == [*range(1, complete + 1), 4]


def test_a_run_from_the_first_step_has_no_line_of_an_earlier_one(tmp_path: Path) -> None:
    MetricsFile(tmp_path, 0).write(0, {"eval_loss": 3.0})
    MetricsFile(tmp_path, 0)
    assert (tmp_path / METRICS).read_text() == ""


@pytest.mark.parametrize(
    "text", ["\0\0\n", "[1]\n", '{"loss": 1}\n', '{"step": true}\n', '{"step": 1e999}\n', "[" * 99999]
)
def test_lines_of_another_make_are_dropped(tmp_path: Path, text: str) -> None:
    (tmp_path / METRICS).write_text('{"step": 1}\n' + text)
    MetricsFile(tmp_path, 5).write(6, {})
    assert [line["step"] for line in lines_in(tmp_path)] == [1, 6]


def test_a_line_written_twice_by_an_older_runner_is_kept_once(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text('{"step": 1}\n{"step": 2}\n{"step": 1}\n{"step": 2}\n')
    MetricsFile(tmp_path, 2)
    assert [line["step"] for line in lines_in(tmp_path)] == [1, 2]


def test_a_file_that_cannot_be_written_ends_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / METRICS).mkdir()
    (tmp_path / METRICS / "in-the-way").touch()
    file = MetricsFile(tmp_path, 0)
    for step in (1, 2):
        file.write(step, {"loss": 1.0})
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "the run goes on, and its report has gaps" in said[0]


def test_a_file_that_somebody_removes_begins_anew(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path, 0)
    file.write(1, {"loss": 1.0})
    (tmp_path / METRICS).unlink()
    file.write(2, {"loss": 1.0})
    file.write(2, {"eval_loss": 1.0})
    file.write(3, {"loss": 1.0})
    assert [line["step"] for line in lines_in(tmp_path)] == [2, 3]


def test_the_peak_of_memory_is_that_of_this_process() -> None:
    assert 0.001 < peak_memory_gib() < 64
