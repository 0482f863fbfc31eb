"""One training job as a benchmark runs it: timed by the lines it prints, and ended when it hangs."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]

# What the trainer prints after each step at --logging_steps 1, and once after the last.
_STEP = b"{'loss'"
_TRAINED = b"{'train_runtime'"
# Seconds that the end of a job may be silent at least, however quickly it trained.
LEAST_PATIENCE = 10.0


class JobFailed(Exception):  # noqa: N818 - it is the job that failed, not this program
    """A job ended with another code than 0, or without a step; the message holds all that it printed."""


@dataclass(frozen=True, slots=True)
class Run:
    """What was measured of one job, in seconds from its start; None for what it did not reach.

    Attributes:
        first_step: to the end of the first step.
        trained: to the end of the last step.
        total: to the end of the process; None if it hung and was killed.
        processor: that processors worked for it, in all its processes; None if it was killed.
        waited: from its last line until it was killed.
        steps: the lines of its steps, each with its time.
        summary: the line that it printed after the last step; empty if it did not.
        problem: why nothing was measured, if it failed.
    """

    first_step: float | None
    trained: float | None
    total: float | None
    processor: float | None
    waited: float = 0
    steps: tuple[tuple[float, str], ...] = ()
    summary: str = ""
    problem: str = ""

    def __str__(self) -> str:
        """Say what it took, why it failed, or where it hung."""
        if self.problem:
            return self.problem
        if self.total is not None:
            return f"{self.total:.1f} s, first step after {self.first_step:.1f} s"
        where = "at its end" if self.trained else "in training" if self.first_step else "before its first step"
        return f"hung {where}, killed after {self.waited:.0f} s of silence"


def environment(*options: str, image: str = "trl") -> Path:
    """Return the Python of an environment with an image's packages; images/trl/venv has the options.

    Raises:
        SystemExit: it could not be made; the reason is on stderr.
    """
    made = subprocess.run([ROOT / "images" / image / "venv", *options], check=False, stdout=subprocess.PIPE, text=True)
    if made.returncode:
        sys.exit(made.returncode)
    return Path(made.stdout.strip()) / "bin" / "python"


def run_job(argv: Sequence[str], env: dict[str, str], patience: float, at_its_end: float = LEAST_PATIENCE) -> Run:
    """Run a job to its end and return what it took.

    Args:
        argv: the command.
        env: variables on top of this process's.
        patience: seconds of silence after which a job hangs that has steps left. Once it has trained, it hangs when it
            is silent for as long as it took so far.
        at_its_end: seconds of silence that are allowed there in any case.

    Raises:
        JobFailed: it ended with another code than 0, or without a step.
    """
    began, worked_before = time.monotonic(), worked()
    trained = None
    summary = ""
    lines: list[bytes] = []
    steps: list[tuple[float, str]] = []

    def measured(total: float | None, processor: float | None, waited: float = 0) -> Run:
        return Run(steps[0][0] if steps else None, trained, total, processor, waited, tuple(steps), summary)

    heard = began
    env = {**os.environ, "PYTHONUNBUFFERED": "1", **env}
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0) as process:
        assert process.stdout is not None
        try:
            unfinished = b""
            while chunk := _read(process.stdout, allowed_silence(trained, patience, at_its_end)):
                heard = time.monotonic()
                *ended, unfinished = (unfinished + chunk).split(b"\n")
                lines += ended
                steps += [(heard - began, line.decode(errors="replace")) for line in ended if _STEP in line]
                if trained is None and (told := next((line for line in ended if _TRAINED in line), None)):
                    trained, summary = heard - began, told.decode(errors="replace")
            process.wait(allowed_silence(trained, patience, at_its_end))
        except (TimeoutError, subprocess.TimeoutExpired):
            return measured(None, None, time.monotonic() - heard)
        finally:
            if process.poll() is None:
                kill(process.pid)
    if process.returncode or not steps:
        printed = b"\n".join([*lines, unfinished]).decode(errors="replace")
        raise JobFailed(f"{printed}\n{' '.join(argv)} ended with {process.returncode}")
    return measured(time.monotonic() - began, worked() - worked_before)


def _read(pipe: IO[bytes], patience: float) -> bytes:
    """Return what has come, nothing at the end.

    Raises:
        TimeoutError: nothing came in time.
    """
    if not select.select([pipe], [], [], patience)[0]:
        raise TimeoutError
    return pipe.read(2**16)


def allowed_silence(trained: float | None, patience: float, at_its_end: float = LEAST_PATIENCE) -> float:
    """Return how long a job may print nothing: as long as it took so far, once it has only its end before it."""
    return patience if trained is None else min(patience, max(trained, at_its_end))


def end_process(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Ask a process to end, and kill it with all that it started if it has not after so many seconds."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        kill(process.pid)
        process.wait()


def kill(pid: int) -> None:
    """Kill a process and all that it started: torchrun's workers have sessions of their own and would outlive it."""
    children = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            children[int(stat.read_text().rpartition(")")[2].split()[1])].append(int(stat.parent.name))
        except OSError:  # it has ended
            continue
    doomed = [pid]
    for parent in doomed:
        doomed += children[parent]
    for each in doomed:
        try:
            os.kill(each, signal.SIGKILL)
        except ProcessLookupError:
            continue


def worked() -> float:
    """Return the seconds that processors have worked for the ended children of this process, and for theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
