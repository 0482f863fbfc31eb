"""Two sessions at once: both learn, one's trainer is killed, the other does not notice, and nothing is left."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml

from charts.helm import ROOT
from cluster import Cluster
from e2e.kube import Kube
from e2e.rollouts import SumsRun
from e2e.sessions import Rl, key_of, left, pods_of, rl, runtime, status, trainjob
from e2e.trainjobs import Reader

__all__ = ["rl", "runtime", "trainjob"]  # fixtures

pytestmark = pytest.mark.full  # two samplers start, and two runs learn

NAMES = ("one", "two")
EXAMPLE = ROOT / "examples/two-sessions/two_sessions.py"
# As in test_rollouts.py, which has twice the nodes: half of all sums in each step, eight answers to each.
ALL_WEIGHTS = {
    "use_peft": "false",
    "per_device_train_batch_size": "400",
    "learning_rate": "5e-4",
    "max_steps": "150",
    "save_steps": "25",
    "eval_steps": "150",
}
LORA = {"per_device_train_batch_size": "128", "max_steps": "60", "save_steps": "10", "eval_steps": "60"}
LEARNS = {
    "reward_funcs": "rewards:right_sum",
    "max_staleness": "4",
    "eval_strategy": "steps",
    "per_device_eval_batch_size": "50",
    "dataset_test_split": "train",
}


def with_flags(file: Path, flags: Mapping[str, str]) -> Path:
    """Give the TrainJob in a file more flags; the last of a flag counts."""
    made = yaml.safe_load(file.read_text())
    made["spec"]["trainer"]["args"] += [f"--{flag}={value}" for flag, value in flags.items()]
    file.write_text(yaml.safe_dump(made))
    return file


def best(rewards: list[float]) -> float:
    """Return the highest mean reward of ten steps in a row."""
    return max(fmean(rewards[start : start + 10]) for start in range(len(rewards) - 9))


@pytest.mark.parametrize(
    ("settings", "steps", "reward"),
    [
        pytest.param(ALL_WEIGHTS, 150, 0.97, id="all-weights", marks=pytest.mark.learning),
        pytest.param(LORA, 60, 0.85, id="lora"),
    ],
)
def test_both_learn_and_one_does_not_notice_that_the_others_trainer_is_killed(
    settings: dict[str, str],
    steps: int,
    reward: float,
    rl: Rl,
    trainjob: Path,
    thorough: dict[str, str],
    kube: Kube,
    reader: Reader,
) -> None:
    file = with_flags(trainjob, {**LEARNS, **thorough, **settings})
    for name in NAMES:
        rl("up", name, str(file), "--time-limit", "3h", "--wait", "0")
    for name in NAMES:
        rl("up", name, str(file), "--time-limit", "3h", "--wait", "900")
    runs = {name: SumsRun(kube, name, reader) for name in NAMES}

    keys = {name: key_of(kube, name) for name in NAMES}
    for name, other in (NAMES, NAMES[::-1]):
        found = [status(kube, name, name, key) for key in ("", "wrong", keys[other], keys[name])]
        assert found == [401, 401, 401, 200], name

    # Killed between two checkpoints.
    every = int(settings["save_steps"])
    runs["one"].wait_steps(every + 2, 1800)
    before = {name: _uids(kube, name) for name in NAMES}
    (node,) = pods_of(kube, "one", "node")
    kube.kubectl("delete", "pod", node["metadata"]["name"], "--grace-period=0", "--force")
    kube.until("one to have another trainer", lambda: bool(_uids(kube, "one", "node") - before["one"]), 300)
    assert _uids(kube, "two") == before["two"], "no pod of the other was made anew"

    for run in runs.values():
        run.wait_complete(seconds=7200)
    assert (runs["one"].restarts().total, runs["two"].restarts().total) == (1, 0)
    assert _uids(kube, "two", "node") <= before["two"]
    for name, run in runs.items():
        lines = run.metrics()
        assert [line["step"] for line in lines] == [*range(1, steps + 1)], name
        rewards = [line["reward"] for line in lines]
        assert fmean(rewards[:10]) <= 0.7, (name, rewards)
        assert best(rewards) >= reward, (name, rewards)
        judged = run.manifest(reader)["metrics"]
        assert (judged["eval_version"], judged["eval_rows"], judged["eval_reward"]) == (steps, 100, 1.0), name

    for name in NAMES:
        rl("down", name, "--purge")
        assert left(kube, name) == []
        assert kube.get("pvc", f"initializer-{name}") is None


@pytest.mark.learning
def test_the_example_does_it_with_one_command(rl: Rl, trainjob: Path, kube: Kube, cluster: Cluster) -> None:
    flags = {**LEARNS, "eval_strategy": "no", "per_device_train_batch_size": "128", "max_steps": "40"}
    file = with_flags(trainjob, flags)
    command = [sys.executable, EXAMPLE, "--namespace", kube.namespace, "--trainjob", file, "--time-limit", "1h"]
    words = ["env", f"PYTHONPATH={ROOT / 'runner/src'}", *map(str, command)]
    done: subprocess.CompletedProcess[str] = cluster.run(words, check=False, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = done.stdout.splitlines()
    for name in ("sums-one", "sums-two"):
        assert any(line.startswith(f"{name}: 40 steps, mean reward 0.") for line in shown), done.stdout
        assert left(kube, name) == []
        assert kube.get("pvc", f"initializer-{name}") is None
    assert shown[-1] == "left: nothing"


def _uids(kube: Kube, name: str, *roles: str) -> set[Any]:
    """Return the ids of the pods of a session."""
    return {pod["metadata"]["uid"] for role in roles or ("node", "sampler") for pod in pods_of(kube, name, role)}
