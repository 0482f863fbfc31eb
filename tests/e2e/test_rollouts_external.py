"""Asynchronous GRPO with a serving release: two TrainJobs at once learn from the same two replicas."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from charts.helm import ROOT
from e2e.kube import Kube, uid_of
from e2e.registry import Image
from e2e.rollouts import EXAMPLE, HOLDING, Installs, SumsRun, example_trainjob
from e2e.strikers import Striker, hit
from e2e.trainjobs import Reader, Restarts

pytestmark = pytest.mark.full  # two replicas and two trainers take minutes on a small machine

RELEASE, SAMPLERS, ADAPTERS = "async-grpo-external", "samplers", "async-grpo-adapters"
RUNTIME = "trl-grpo-async-external"
NAMES, STEPS, MANY = ("sums-one", "sums-two"), 12, 40
# The step of a hit, which the runs wait after.
HIT = 7
LIST = f"import pathlib; print(*sorted(p.name for p in pathlib.Path('/claims/{ADAPTERS}/adapters').glob('*/*')))"


@pytest.fixture(scope="module")
def samplers(kube: Kube, helm: Callable[..., str], serving_chart: list[str], sums: None) -> Iterator[None]:
    """Two replicas with the example's values, the Secret with their key and the claim that they watch."""
    kube.create_claim(ADAPTERS)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "samplers-key"}}
    kube.apply({**secret, "stringData": {"api-key": "a-key-that-only-this-test-has"}})
    helm(
        "upgrade", "--install", SAMPLERS, *serving_chart, "--values", str(EXAMPLE / "samplers-values.yaml"),
        "--namespace", kube.namespace, "--wait", "--timeout", "15m",
    )  # fmt: skip
    yield
    helm("uninstall", SAMPLERS, "--namespace", kube.namespace, "--ignore-not-found")


@pytest.fixture(scope="module")
def runtime(install_catalogue: Installs, image: Image, serving_images: Mapping[str, Image]) -> None:
    """The runtime with the example's values, in a release of its own."""
    images = {"trl": image.values, "fetch": serving_images["fetch"].values}
    enabled = {"trl-distributed": {"enabled": False}, RUNTIME: {"enabled": True}}
    install_catalogue(RELEASE, {"runtimes": enabled, "images": images}, EXAMPLE / "runtimes-values.yaml")


Submits = Callable[[int, int], list[SumsRun]]
"""Submits two runs at once: their steps, and every how many of them they save a checkpoint."""


def trainjob(name: str, steps: int, save_steps: int) -> dict[str, Any]:
    """Return the example's TrainJob on one node, for samplers that are a release."""
    flags = {"max_steps": str(steps), "save_steps": str(save_steps)}
    found = example_trainjob(RUNTIME, {**HOLDING, **flags})
    found["metadata"]["name"] = name
    (patch,) = found["spec"]["runtimePatches"]
    jobs = patch["trainingRuntimeSpec"]["template"]["spec"]
    jobs["replicatedJobs"] = [job for job in jobs["replicatedJobs"] if job["name"] == "node"]
    return found


@pytest.fixture
def submit_two(kube: Kube, reader: Reader, runtime: None, samplers: None) -> Iterator[Submits]:
    """Submits two runs at once, which are deleted when the test ends."""
    runs = [SumsRun(kube, name, reader) for name in NAMES]

    def create(steps: int, save_steps: int) -> list[SumsRun]:
        for run in runs:
            run.delete()
        for run in runs:
            kube.until(f"what is left of {run.name} to go", run.is_gone, 300)
        kube.create(*(trainjob(name, steps, save_steps) for name in NAMES))
        return runs

    yield create
    for run in runs:
        run.delete()


def replicas(kube: Kube) -> dict[str, int]:
    """Return the uids of the release's pods, and how often a container of each was restarted."""
    found = {}
    for pod in kube.items("pods", f"app.kubernetes.io/instance={SAMPLERS}"):
        status = pod["status"]
        containers = [*status.get("initContainerStatuses", ()), *status["containerStatuses"]]
        found[uid_of(pod)] = sum(one["restartCount"] for one in containers)
    return found


def test_two_trainjobs_share_the_replicas_of_a_release(submit_two: Submits, reader: Reader, kube: Kube) -> None:
    for run in submit_two(STEPS, STEPS):
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


def test_a_trainer_that_is_killed_leaves_the_replicas_and_the_other_run_alone(
    submit_two: Submits, strikers: list[Striker], reader: Reader, kube: Kube, measured: Callable[[str], None]
) -> None:
    killed, other = submit_two(MANY, 5)
    for run in (killed, other):
        run.hold(HIT)
    for run in (killed, other):
        run.wait_steps(HIT, seconds=900)
    before = replicas(kube)
    (node,) = killed.pods()
    lost = hit(strikers, [node], signal.SIGKILL)
    other.release()
    kube.until("another trainer", lambda: killed.runs(but=uid_of(node)), 300)
    killed.release()
    for run, restarts in ((killed, 1), (other, 0)):
        run.wait_complete(seconds=1200)
        assert run.restarts() == Restarts(restarts, restarts)
        manifest = run.manifest(reader)
        assert (manifest["steps"], manifest["attempt"]) == (MANY, restarts)
        assert (manifest["resumed_from"] is not None) == (run is killed)
        steps = run.metrics()
        assert [line["step"] for line in steps] == [*range(1, MANY + 1)]
        assert max(line["staleness/max"] for line in steps) <= 4
    seconds = (killed.stepped() - lost).total_seconds()
    measured(f"a killed trainer with samplers of a release: {seconds:.0f} s from the loss to the next step")
    # A restart finds its samplers where they were.
    assert len(before) == 2
    assert replicas(kube) == before
    assert {*reader.run(["python", "-c", LIST], [ADAPTERS]).split()} == {".owner"}


def test_the_benchmark_trains_both_sides_and_leaves_nothing(kube: Kube, runtime: None, samplers: None) -> None:
    size = ("--pairs", "1", "--steps", "10")
    words = ("compute", *size, "--runtime", RUNTIME, "--namespace", kube.namespace)
    done = kube.cluster.run(
        [sys.executable, str(ROOT / "benchmarks/async_grpo.py"), *words], check=False, capture_output=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"nothing waits +synchronous .* s, asynchronous .* of 1 pairs", done.stdout), done.stdout
    assert done.stdout.count("samplers ready at least") == 2
    left = kube.kubectl("get", "trainjobs,configmaps,persistentvolumeclaims,pods", "--output", "name").stdout
    assert "benchmark-" not in left
