"""Rank 0 chooses the checkpoint for all, and sets aside what the run does not go on from."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner.tests.samples import plan_of, saved

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import write_json
from stoker.contract.manifest import MANIFEST
from stoker.plan.plan import Plan
from stoker.rank import checkpoints, worker


def plan_in(workspace: Path, *args: str, resume: str = "auto") -> Plan:
    told = {"STOKER_WORKSPACE": str(workspace), "STOKER_JOB_ID": "job", "STOKER_RESUME": resume}
    return plan_of("--max_steps", "9", *args, env=told)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """The output of a run that has finished after five of these steps, with a checkpoint."""
    record = plan_in(tmp_path).record
    saved(tmp_path / "output", 5, record=record)
    write_json(tmp_path / "output" / MANIFEST, {**record, "budget": {"steps": 5}, "steps": 5})
    return tmp_path / "output"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_finished_output_goes_before_training_continues(tmp_path: Path, output: Path) -> None:
    assert worker._choose_checkpoint(plan_in(tmp_path)) == output / "checkpoint-5"
    assert names(output) == ["checkpoint-5", "earlier-output-1"]


def test_a_run_that_starts_anew_is_on_record_once_all_is_set_aside(tmp_path: Path, output: Path) -> None:
    plan = plan_in(tmp_path, resume="never")
    assert worker._choose_checkpoint(plan) is None
    assert names(output) == ["earlier-output-1", "set-aside-checkpoint-5-1"]
    assert not checkpoints.starts_anew(tmp_path, output, plan.resume, plan.job_id, plan.attempt)


def test_if_the_output_cannot_be_moved_the_run_starts_anew_again(
    tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(checkpoints, "retire_output", failing)
    plan = plan_in(tmp_path, resume="never")
    with pytest.raises(OSError, match="Input/output error"):
        worker._choose_checkpoint(plan)
    assert checkpoints.starts_anew(tmp_path, output, plan.resume, plan.job_id, plan.attempt)


def test_a_run_that_is_refused_moves_nothing(tmp_path: Path, output: Path) -> None:
    before = names(output)
    with pytest.raises(RunError, match="belongs to another run: seed was 42, now 7") as refused:
        worker._choose_checkpoint(plan_in(tmp_path, "--seed", "7"))
    assert refused.value.code is ExitCode.CONFIG
    assert names(output) == before
