"""What happens inside a real training loop: broken losses are seen before they are saved, a stop wastes no time."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from runner.tests.samples import check


@pytest.fixture(scope="module")
def results(trainer_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How each case ended."""
    script = Path(__file__).with_name("follow_cases.py")
    done = subprocess.run(
        [str(trainer_python), str(script), str(tmp_path_factory.mktemp("follow"))],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("case", "seen_at", "saved"),
    [("broken in the last step", 6, []), ("broken before a checkpoint", 4, ["checkpoint-2"])],
)
def test_a_loss_that_is_no_number_is_seen_before_it_is_saved_however_seldom_it_is_logged(
    results: dict[str, Any], case: str, seen_at: int, saved: list[str]
) -> None:
    assert results[case]["ending"] is not None, "training went through"
    code, message = results[case]["ending"]
    assert code == 70
    assert f"the loss is nan at step {seen_at}: lower the learning rate" in message
    assert results[case]["saved"] == saved


def test_each_step_has_one_line_of_metrics_with_its_evaluation(results: dict[str, Any]) -> None:
    lines = results["evaluated"]["metrics"]
    for line in lines:
        check(line, "metrics-v1")
    # Step 3 is evaluated, and not logged; the last one is both, and has the summary of the run.
    assert [line["step"] for line in lines] == [2, 3, 4, 6]
    assert [("loss" in line, "eval_loss" in line) for line in lines] == [
        (True, False), (False, True), (True, False), (True, True),
    ]  # fmt: skip
    assert all(line["peak_memory_gib"] > 0 for line in lines)
    assert {"train_runtime", "learning_rate", "grad_norm"} <= lines[-1].keys()


def test_a_loss_that_is_no_number_is_null_in_the_metrics(results: dict[str, Any]) -> None:
    (line,) = results["broken in the last step"]["metrics"]
    assert (line["step"], line["loss"]) == (6, None)


def test_a_stop_saves_at_once_without_the_evaluation_that_was_due(results: dict[str, Any]) -> None:
    stopped = results["stopped"]
    assert stopped["ending"] == [75, "stopped at step 1, checkpoint saved"]
    assert stopped["saved"] == ["checkpoint-1"]
    assert stopped["evaluated"] == 0


def test_no_file_of_the_output_tells_the_token_of_the_hub(results: dict[str, Any]) -> None:
    assert any(case["saved"] for case in results.values())
    assert [case["told"] for case in results.values()] == [[]] * len(results)
