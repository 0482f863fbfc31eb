"""A benchmark's job is timed by its lines, and never waited for longer than its own pace allows; with stand-ins."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path

import pytest
from benchmarks import jobs
from benchmarks.jobs import JobFailed, allowed_silence, run_job

STEP = """echo "{'loss': '1.0'}";"""
TRAINED = """echo "{'train_runtime': '1.0'}";"""
FOR_EVER = "sleep 3600;"


def shell(program: str) -> list[str]:
    """A shell starts at once, on a busy machine too."""
    return ["sh", "-c", program]


def test_a_job_that_ends_is_timed() -> None:
    run = run_job(
        shell(f"{STEP} sleep 0.3; {TRAINED} sleep 0.3; i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done"), {}, 60
    )
    assert run.first_step is not None
    assert run.trained is not None
    assert run.total is not None
    assert 0 < run.first_step <= run.trained <= run.total
    assert run.total > 0.6
    assert run.processor is not None
    assert run.processor > 0
    assert str(run) == f"{run.total:.1f} s, first step after {run.first_step:.1f} s"


def test_a_job_that_hangs_at_its_end_keeps_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "LEAST_PATIENCE", 1)
    began = time.monotonic()
    run = run_job(shell(STEP + TRAINED + FOR_EVER), {}, 600)
    assert time.monotonic() - began < 300, "it was waited for as if it had steps left"
    assert run.first_step is not None
    assert run.trained is not None
    assert (run.total, run.processor) == (None, None)
    assert run.waited >= 1
    assert str(run) == f"hung at its end, killed after {run.waited:.0f} s of silence"


@pytest.mark.parametrize(("program", "where"), [("", "before its first step"), (STEP, "in training")])
def test_a_job_that_hangs_before_its_end_is_killed_after_the_patience(program: str, where: str) -> None:
    run = run_job(shell(program + FOR_EVER), {}, 3)
    assert str(run) == f"hung {where}, killed after {run.waited:.0f} s of silence"
    assert run.total is None
    assert run.waited >= 3


def test_a_job_that_says_something_in_time_is_waited_for() -> None:
    """The patience counts silence: this job takes longer in all, and is never silent for as long."""
    run = run_job(shell(f"for i in 1 2 3 4 5 6; do {STEP} sleep 1; done"), {}, 5)
    assert run.total is not None
    assert run.total >= 6


def test_the_end_may_take_as_long_as_the_training_and_no_longer_than_the_patience() -> None:
    assert allowed_silence(None, 120) == 120
    assert allowed_silence(30, 120) == 30
    assert allowed_silence(1, 120) == 10, "a quick job on a busy machine"
    assert allowed_silence(500, 120) == 120
    assert allowed_silence(1, 5) == 5


def test_processes_in_sessions_of_their_own_are_killed_too(tmp_path: Path) -> None:
    """Torchrun's workers are such; one that lived on would also hold the pipe that is read."""
    written = tmp_path / "pid"
    worker = f"echo $$ > {shlex.quote(str(written))}; exec sleep 3600"
    run = run_job(shell(f"{STEP} setsid sh -c {shlex.quote(worker)} & {FOR_EVER}"), {}, 2)
    assert run.total is None
    wait_for_the_end(int(written.read_text()))


def wait_for_the_end(pid: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return  # nobody has asked how it ended
        except (ProcessLookupError, FileNotFoundError):
            return
        time.sleep(0.1)
    pytest.fail(f"process {pid} was left behind")


def test_output_that_stays_open_is_no_end() -> None:
    run = run_job(shell(f"{STEP} setsid sleep 10 &"), {}, 1)
    assert run.total is None


def test_a_failed_job_shows_what_it_printed() -> None:
    with pytest.raises(JobFailed, match=r"(?s)no such model.*ended with 3"):
        run_job(shell("echo no such model; exit 3"), {}, 60)


def test_a_job_without_a_step_has_failed() -> None:
    with pytest.raises(JobFailed, match="ended with 0"):
        run_job(shell("echo nothing to do"), {}, 60)


def test_a_progress_bar_in_the_same_line_hides_no_step() -> None:
    run = run_job(shell(f"head -c 500000 /dev/zero | tr '\\0' x; printf '\\r'; {STEP}"), {}, 60)
    assert run.first_step is not None


def test_the_job_is_told_its_variables() -> None:
    assert run_job(shell(f'[ "$TOLD$PYTHONUNBUFFERED" = yes1 ] && {STEP}'), {"TOLD": "yes"}, 60).total is not None
