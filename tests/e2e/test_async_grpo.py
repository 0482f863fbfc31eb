"""Asynchronous GRPO in one TrainJob: two pods learn to add while two samplers write the answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml
from runner.tests.integration.environments import environment, made_once

from cluster import Cluster
from e2e.kube import Kube
from e2e.registry import Image
from e2e.trainjobs import Reader, Run

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/async-grpo"
RELEASE, CLAIM = "async-grpo", "async-grpo-inputs"
VALUES = {
    "runtimes": {
        "trl-distributed": {"enabled": False},
        "trl-grpo-async": {
            "enabled": True,
            # Both samplers and both trainers fit on two cores.
            "samplers": {
                "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "4Gi"}},
                "sharedMemory": "256Mi",
                "args": {"enforce-eager": True, "max-num-seqs": "64"},
                "env": {"OMP_NUM_THREADS": "1"},
            },
        },
    }
}


@pytest.fixture(scope="module")
def runtime(
    helm: Callable[..., str],
    chart: list[str],
    image: Image,
    serving_images: Mapping[str, Image],
    kube: Kube,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """The runtime with samplers, in a release of its own."""
    images = {name: one.values for name, one in {**serving_images, "trl": image}.items()}
    values = tmp_path_factory.mktemp("values") / "samplers.yaml"
    values.write_text(yaml.safe_dump({**VALUES, "images": images, "namespaces": [kube.namespace]}))
    common = Path(__file__).with_name("values.yaml")
    helm(
        "upgrade", "--install", RELEASE, *chart, "--values", str(common), "--values", str(values),
        "--namespace", kube.namespace, "--wait",
    )  # fmt: skip
    yield
    helm("uninstall", RELEASE, "--namespace", kube.namespace, "--ignore-not-found")


@pytest.fixture(scope="module")
def sums(kube: Kube, reader: Reader) -> None:
    """The claim with a base model that hesitates, the sums and their reward."""
    kube.create_claim(CLAIM)
    reader.write(CLAIM, "rewards.py", (EXAMPLE / "rewards.py").read_text())
    reader.copy(made_once("trl", environment("trl"), EXAMPLE / "adding_model.py", "--output"), CLAIM)


@pytest.fixture
def submit_sums(kube: Kube, runtime: None, sums: None) -> Iterator[Callable[[Mapping[str, str]], Run]]:
    """Submits the example's TrainJob with other flags; it is deleted when the test ends."""
    runs: list[Run] = []

    def create(flags: Mapping[str, str]) -> Run:
        trainjob = yaml.safe_load((EXAMPLE / "trainjob.yaml").read_text())
        trainjob["spec"]["trainer"]["args"] += [f"--{name}={value}" for name, value in flags.items()]
        run = Run(kube, trainjob["metadata"]["name"])
        run.delete()
        runs.append(run)
        kube.create(trainjob)
        return run

    yield create
    for run in runs:
        run.delete()


def metrics_of(run: Run, reader: Reader) -> list[dict[str, Any]]:
    """Return what the run wrote of each step."""
    claim = f"initializer-{run.name}"
    text = reader.run(["cat", f"/claims/{claim}/output/metrics.jsonl"], [claim])
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_two_trainers_learn_from_two_samplers_and_the_samplers_end_with_them(
    submit_sums: Callable[[Mapping[str, str]], Run], reader: Reader, kube: Kube, cluster: Cluster
) -> None:
    run = submit_sums({"max_steps": "24", "save_steps": "24"})
    run.wait_complete(seconds=600)
    assert run.restarts().total == 0
    manifest = run.manifest(reader)
    assert (manifest["status"], manifest["world_size"], manifest["steps"]) == ("finished", 2, 24)

    steps = [line for line in metrics_of(run, reader) if "reward" in line]
    assert len(steps) == 24
    rewards = [line["reward"] for line in steps]
    assert fmean(rewards[-4:]) >= fmean(rewards[:2]) + 0.15, rewards
    assert max(line["staleness/max"] for line in steps) <= 4

    def ended() -> bool:
        pods = kube.items("pods", f"jobset.sigs.k8s.io/jobset-name={run.name},stoker.dev/role=sampler")
        return all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in pods)

    kube.until("the samplers to end with the trainers", ended, 120)
