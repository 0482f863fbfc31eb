"""The TrainJobs of the asynchronous benchmark, and what it says of a cluster that it cannot use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from benchmarks.async_grpo import main
from benchmarks.async_grpo_runs import Size, flags_of, numbers
from benchmarks.async_grpo_trainjobs import EXAMPLE, README, trainjob

PROGRAM = Path(__file__).parents[1] / "async_grpo.py"
SIZE = Size(steps=40, groups=16, samples=4, staleness=8)


def made(*jobs: str) -> dict[str, Any]:
    """Return the specification of a TrainJob for a runtime with these jobs."""
    flags = flags_of(SIZE, "async_grpo_rewards:after(seconds=1.0,spread=0.0,places=0)", seed=3)
    found = trainjob(yaml.safe_load(EXAMPLE.read_text()), "benchmark-1", "grpo", jobs, "benchmark", flags)
    assert found["metadata"]["name"] == "benchmark-1"
    spec: dict[str, Any] = found["spec"]
    return spec


def test_a_trainjob_is_the_examples_with_the_flags_of_the_row() -> None:
    spec = made("node", "sampler")
    assert spec["runtimeRef"]["name"] == "grpo"
    assert spec["trainer"]["numNodes"] == 1
    told = dict(word.removeprefix("--").split("=", 1) for word in spec["trainer"]["args"])  # the last of a flag counts
    assert (told["model_name_or_path"], told["dataset_name"]) == ("/inputs/model", "/inputs/dataset")
    assert told["reward_funcs"] == "async_grpo_rewards:after(seconds=1.0,spread=0.0,places=0)"
    assert (told["max_staleness"], told["max_steps"], told["seed"]) == ("8", "40", "3")
    assert told["per_device_train_batch_size"] == "64"


def test_the_node_alone_sees_the_rewards_and_only_jobs_of_the_runtime_are_patched() -> None:
    jobs = made("node", "sampler")["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    volumes = {job["name"]: job["template"]["spec"]["template"]["spec"]["volumes"] for job in jobs}
    assert [volume["name"] for volume in volumes["node"]] == ["inputs", "rewards"]
    assert [volume["name"] for volume in volumes["sampler"]] == ["inputs"]
    (node,) = made("node")["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert node["name"] == "node"


def test_a_line_of_the_log_has_numbers() -> None:
    assert numbers("node-0: {'loss': '0.5', 'reward': 1, 'kl': 'nan'}\n")["reward"] == 1.0
    assert numbers("{'train_runtime': '30.5', 'loss': 1}")["train_runtime"] == 30.5


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["publish", "--runtime", "grpo"],
            "argument ROW: there is no row 'publish': choose from tool, tail, balanced, compute",
        ),
        (["--namespace", "rl"], "--namespace needs --runtime: processes of this machine have no namespace"),
    ],
)
def test_wrong_arguments_are_refused_at_once(words: Sequence[str], problem: str, refusal: Callable[..., str]) -> None:
    assert refusal(main, *words) == problem


def measure(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), "compute", "--runtime", "grpo", "--namespace", "rl"]
    return subprocess.run(command, env={**os.environ, "PATH": str(path)}, check=False, capture_output=True, text=True)


def test_a_missing_kubectl_is_named(tmp_path: Path) -> None:
    ended = measure(tmp_path)
    assert ended.returncode == 1
    assert ended.stderr == "async_grpo.py: error: kubectl is missing: install it, and point it at the cluster\n"


@pytest.mark.parametrize("lacks", ["clustertrainingruntime grpo", "persistentvolumeclaim async-grpo-inputs"])
def test_what_the_cluster_lacks_is_said_before_the_first_row(lacks: str, tmp_path: Path) -> None:
    jobs = json.dumps({"spec": {"template": {"spec": {"replicatedJobs": [{"name": "node"}]}}}})
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        f"#!/bin/sh\ncase \"$*\" in *'get {lacks}'*) echo 'not found' >&2; exit 1 ;; *) echo '{jobs}' ;; esac\n"
    )
    kubectl.chmod(0o755)
    ended = measure(tmp_path)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr == (
        f"async_grpo.py: error: kubectl get {lacks} ended with 1: not found; "
        f"{README} says under 'On your cluster' how to make both\n"
    )
