"""Asynchronous GRPO with a serving release: two TrainJobs at once learn from the same two replicas."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import yaml

from e2e.kube import Kube
from e2e.registry import Image
from e2e.rollouts import EXAMPLE, Installs, SumsRun
from e2e.trainjobs import Reader

pytestmark = pytest.mark.full  # two replicas and two trainers take minutes on a small machine

RELEASE, SAMPLERS, ADAPTERS = "async-grpo-external", "samplers", "async-grpo-adapters"
NAMES, STEPS = ("sums-one", "sums-two"), 12
LIST = f"import pathlib; print(*sorted(p.name for p in pathlib.Path('/claims/{ADAPTERS}/adapters').glob('*/*')))"


@pytest.fixture(scope="module")
def samplers(kube: Kube, helm: Callable[..., str], serving_chart: list[str], sums: None) -> Iterator[None]:
    """Two replicas with the example's values, the Secret with their key and the claim that they watch."""
    kube.create_claim(ADAPTERS)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "samplers-key"}}
    kube.apply({**secret, "stringData": {"api-key": "a-key-that-only-this-test-has"}})
    helm(
        "upgrade", "--install", SAMPLERS, *serving_chart, "--values", str(EXAMPLE / "samplers-values.yaml"),
        "--namespace", kube.namespace, "--wait", "--timeout", "8m",
    )  # fmt: skip
    yield
    helm("uninstall", SAMPLERS, "--namespace", kube.namespace, "--ignore-not-found")


@pytest.fixture(scope="module")
def runtime(install_catalogue: Installs, image: Image, serving_images: Mapping[str, Image]) -> None:
    """The runtime with the example's values, in a release of its own."""
    images = {"trl": image.values, "fetch": serving_images["fetch"].values}
    enabled = {"trl-distributed": {"enabled": False}, "trl-grpo-async-external": {"enabled": True}}
    install_catalogue(RELEASE, {"runtimes": enabled, "images": images}, EXAMPLE / "runtimes-values.yaml")


def trainjob(name: str) -> dict[str, Any]:
    """Return the example's TrainJob on one node, for samplers that are a release."""
    found: dict[str, Any] = yaml.safe_load((EXAMPLE / "trainjob.yaml").read_text())
    found["metadata"]["name"] = name
    found["spec"]["runtimeRef"]["name"] = "trl-grpo-async-external"
    trainer = found["spec"]["trainer"]
    trainer["numNodes"] = 1
    trainer["args"] += [f"--max_steps={STEPS}", f"--save_steps={STEPS}"]
    (patch,) = found["spec"]["runtimePatches"]
    jobs = patch["trainingRuntimeSpec"]["template"]["spec"]
    jobs["replicatedJobs"] = [job for job in jobs["replicatedJobs"] if job["name"] == "node"]
    return found


@pytest.fixture
def runs(kube: Kube, reader: Reader, runtime: None, samplers: None) -> Iterator[list[SumsRun]]:
    """Two runs at once, which are deleted when the test ends."""
    found = [SumsRun(kube, name, reader) for name in NAMES]
    for run in found:
        run.delete()
    kube.create(*map(trainjob, NAMES))
    yield found
    for run in found:
        run.delete()


def test_two_trainjobs_share_the_replicas_of_a_release(runs: list[SumsRun], reader: Reader, kube: Kube) -> None:
    for run in runs:
        run.wait_complete(seconds=1200)
        assert run.restarts().total == 0
        assert run.manifest(reader)["steps"] == STEPS
        steps = run.metrics()
        assert len(steps) == STEPS
        assert max(line["staleness/max"] for line in steps) <= 4
        assert max(line["samplers/ready"] for line in steps) == 2

    # Each replica served versions of both runs, and at their end none is left.
    pods = kube.items("pods", f"app.kubernetes.io/instance={SAMPLERS}")
    logs = [kube.kubectl("logs", pod["metadata"]["name"], "--container", "adapters").stdout for pod in pods]
    assert len(logs) == 2
    assert all(re.search(rf"adapter {name}-a0:\d+ is served", log) for log in logs for name in NAMES), logs
    assert reader.run(["python", "-c", LIST], [ADAPTERS]).split() == [".owner", ".owner"]
