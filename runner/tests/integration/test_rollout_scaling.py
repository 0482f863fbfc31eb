"""Samplers come and go while a run trains: no step is lost, and a new one works with the next versions."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runner.tests.integration.jobs import LocalJob

from stoker.cluster.processes import free_ports

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[3]
STEPS, GROUPS = 50, 8
# Nothing is rewarded while the file beside it is there: no step passes while a sampler starts.
REWARDS = """
import pathlib, time

HOLD = pathlib.Path(__file__).with_name("hold")

def short(completions, **kwargs):
    while HOLD.exists():
        time.sleep(0.05)
    return [-len(completion) / 10 for completion in completions]
"""
Begin = Callable[[int], subprocess.Popen[bytes]]


@pytest.fixture
def begin(job: LocalJob) -> Iterator[Begin]:
    """Starts a sampler of the job on a port, and returns it when it answers."""
    running: list[subprocess.Popen[bytes]] = []

    def start(port: int) -> subprocess.Popen[bytes]:
        script = Path(__file__).with_name("tiny_sampler.py")
        folders = [str(job.inputs / "model"), str(job.workspace / "adapters")]
        process = subprocess.Popen(
            [str(job.python), str(script), *folders, str(port), str(answers(job, port))],
            env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
        )
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline(), "the sampler ended"
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def answers(job: LocalJob, port: int) -> Path:
    """Return the file in which a sampler writes which policy answered."""
    return job.folder / f"answered-{port}"


def test_samplers_are_scaled_from_two_to_three_and_back(job: LocalJob, begin: Begin) -> None:
    first, second, third = free_ports(3)
    (job.folder / "scaled_rewards.py").write_text(REWARDS)
    env = {
        "STOKER_METHOD": "grpo_async",
        "STOKER_ARG_DATASET_NAME": str(job.inputs / "prompts"),
        "PYTHONPATH": str(job.folder),
    }
    samplers = ",".join(f"http://127.0.0.1:{port}" for port in (first, second, third))
    flags = {
        "samplers": samplers, "max_steps": STEPS, "max_staleness": 2, "num_generations": 4, "max_completion_length": 4,
        "per_device_train_batch_size": 4 * GROUPS, "reward_funcs": "scaled_rewards:short", "save_steps": STEPS,
        "publish_seconds": 60, "reward_seconds": 600,
    }  # fmt: skip
    begin(first)
    begin(second)
    path = job.output / "metrics.jsonl"

    def steps() -> int:
        return len(path.read_text().splitlines()) if path.exists() else 0

    process = job.start(*(word for name, value in flags.items() for word in (f"--{name}", str(value))), env=env)
    job.wait_for(lambda: steps() >= 5, process)
    (hold := job.folder / "hold").touch()
    added = begin(third)
    job.wait_for(lambda: f"sampler 127.0.0.1:{third} is ready" in job.log, process)
    newest = steps()
    hold.unlink()
    answered = job.wait_for(lambda: answers(job, third).exists() and answers(job, third).read_text(), process)
    version = re.match(r".*:(\d+)\n", answered)
    assert version is not None
    assert abs(int(version[1]) - newest) <= 2, "the new sampler works with the next versions"
    goal = steps() + 5
    job.wait_for(lambda: steps() >= goal, process)
    added.kill()
    added.wait()
    assert steps() < STEPS - 5, "the run was over before the sampler went"

    ended = job.end(process)
    assert ended.code == 0, ended.output
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [*range(1, STEPS + 1)]
    assert all(sum(line["staleness/histogram"][:3]) == 4 * GROUPS for line in lines)
    ready = [line["samplers/ready"] for line in lines]
    changes = [count for place, count in enumerate(ready) if not place or count != ready[place - 1]]
    assert changes == [2.0, 3.0, 2.0]
    state = json.loads((job.output / f"checkpoint-{STEPS}" / "rollouts.json").read_text())
    assert (state["frontier"], state["above"]) == (STEPS * GROUPS, [])
