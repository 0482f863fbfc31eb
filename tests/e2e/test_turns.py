"""Samplers of two sessions take turns at a device by a Lease, and the two roles of a run share no node."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.helm import ROOT
from cluster import Cluster
from e2e.kube import Kube, condition, failure
from e2e.registry import Image
from e2e.rollouts import ENDLESS, VALUES, Installs, SumsRun, example_trainjob
from e2e.sharing import LEASE, holder, take_turns
from e2e.trainjobs import Reader

pytestmark = pytest.mark.full  # samplers start one after another

TURNS, APART = "trl-turns", "trl-apart"
NAMES = ("first", "second")
ROLE = "stoker.dev/role"
# What may be asked of the Leases' API, and what the account of samplers may do of it.
RIGHTS = {
    ("get", f"leases/{LEASE}"): True,
    ("update", f"leases/{LEASE}"): True,
    ("delete", f"leases/{LEASE}"): False,
    ("get", "leases/another"): False,
    ("list", "leases"): False,
    ("create", "leases"): False,
    ("get", "secrets"): False,
    ("get", "pods"): False,
}
Stoker = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def runtimes(install_catalogue: Installs, image: Image, serving_images: Mapping[str, Image]) -> None:
    """Two releases with one runtime each: samplers that take turns, and roles on nodes of their own."""
    images = {name: one.values for name, one in {**serving_images, "trl": image}.items()}
    samplers = {**VALUES["runtimes"]["trl-grpo-async"]["samplers"], "count": 1, "maxCount": 1}  # type: ignore[index]
    turns = {**samplers, "slice": {"lease": LEASE, "quantumSeconds": 2}}
    for name, own, more in ((TURNS, turns, {}), (APART, samplers, {"separateRoles": True})):
        made = {"trl-distributed": {"enabled": False}, name: {"base": "trl-grpo-async", "samplers": own}}
        install_catalogue(name, {"runtimes": made, "images": images, **more})


@pytest.fixture
def stoker(cluster: Cluster, kube: Kube, runtimes: None) -> Iterator[Stoker]:
    """Calls `stoker` as a user does; the sessions end with the test."""

    def call(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = ["env", f"PYTHONPATH={ROOT / 'runner/src'}", sys.executable, "-m", "stoker", *words]
        done = cluster.run(command, check=False, capture_output=True)
        if check and done.returncode != 0:
            raise failure(str(words), done)
        return done

    yield call
    for name in NAMES:
        call("rl", "down", name, "--purge", "--namespace", kube.namespace, check=False)


@pytest.fixture
def trainjob(sums: None, tmp_path: Path) -> Callable[[str], str]:
    """Writes the example's TrainJob for one node and a runtime; returns the file."""

    def write(runtime: str) -> str:
        file = tmp_path / f"{runtime}.yaml"
        file.write_text(yaml.safe_dump(example_trainjob(runtime, ENDLESS)))
        return str(file)

    return write


def pods_of(kube: Kube, name: str, role: str) -> list[dict[str, Any]]:
    """Return the pods of a session that have a role."""
    return kube.items("pods", f"stoker.dev/session={name},{ROLE}={role}")


def has_learnt(run: SumsRun, steps: int) -> bool:
    """Return whether a run has trained more steps than so many."""
    return len(run.metrics()) > steps


def test_without_its_lease_a_run_fails_and_explain_says_why(
    stoker: Stoker, trainjob: Callable[[str], str], kube: Kube
) -> None:
    job = yaml.safe_load(Path(trainjob(TURNS)).read_text())
    name = job["metadata"]["name"]
    kube.create(job)
    try:
        kube.until("the run to fail", lambda: condition(kube.get("trainjob", name) or {}, "Failed"), 400)
        told = stoker("explain", name, "--namespace", kube.namespace, check=False).stdout
        assert "ended with exit code 78" in told, told
        assert f"{name}-sampler-0" in told, told
    finally:
        kube.delete("trainjob", name)
        kube.delete("pvc", f"initializer-{name}")


def test_samplers_of_two_sessions_take_turns_and_both_learn(
    stoker: Stoker, trainjob: Callable[[str], str], kube: Kube, reader: Reader
) -> None:
    words = (trainjob(TURNS), "--namespace", kube.namespace, "--wait", "900")
    missing = stoker("rl", "up", NAMES[0], *words, check=False)
    assert (missing.returncode, f"take turns by the Lease {LEASE}" in missing.stderr) == (66, True), missing.stderr
    for name in NAMES:
        stoker("rl", "up", name, *words, "--turns")
    runs = [SumsRun(kube, name, reader) for name in NAMES]
    for run in runs:
        run.wait_steps(2, 900)

    # Each has the device again and again, and nobody else ever.
    samplers = {pods_of(kube, name, "sampler")[0]["spec"]["hostname"] for name in NAMES}
    steps = [len(run.metrics()) for run in runs]
    take_turns(kube, samplers)
    for run, before in zip(runs, steps, strict=True):
        kube.until("both to learn", partial(has_learnt, run, before + 1), 600)
    restarts = [
        status["restartCount"]
        for name in NAMES
        for pod in pods_of(kube, name, "sampler")
        for status in (*pod["status"]["initContainerStatuses"], *pod["status"]["containerStatuses"])
    ]
    assert {*restarts} == {0}

    # Rights.
    (pod,) = pods_of(kube, NAMES[0], "sampler")
    account = f"system:serviceaccount:{kube.namespace}:{pod['spec']['serviceAccountName']}"
    said = {
        right: kube.kubectl("auth", "can-i", *right, "--as", account, check=False).stdout.strip() == "yes"
        for right in RIGHTS
    }
    assert said == RIGHTS

    # Whoever is left has the device alone, and the Lease goes with the last.
    stoker("rl", "down", NAMES[0], "--purge", "--namespace", kube.namespace)
    left = pods_of(kube, NAMES[1], "sampler")[0]["spec"]["hostname"]
    kube.until("the other one to have the device", lambda: holder(kube) == left, 180)
    stoker("rl", "down", NAMES[1], "--purge", "--namespace", kube.namespace)
    kube.until("the Lease to go", lambda: kube.get("lease", LEASE) is None, 180)


@pytest.fixture
def labelled(cluster: Cluster, kube: Kube) -> Iterator[Callable[[], dict[str, str]]]:
    """Labels two nodes for the two roles when it is called, and keeps all but samplers off one of them.

    Returns the nodes by role.
    """
    if len(cluster.nodes()) < 2:
        pytest.skip("this cluster has one node")
    nodes = dict(zip(("trainer", "sampler"), cluster.nodes(), strict=False))
    taint = f"{ROLE}=sampler:NoSchedule"

    def label() -> dict[str, str]:
        for role, node in nodes.items():
            kube.kubectl("label", "node", node, f"{ROLE}={role}", "--overwrite")
        kube.kubectl("taint", "node", nodes["sampler"], taint, "--overwrite")
        return nodes

    yield label
    kube.kubectl("taint", "node", nodes["sampler"], f"{taint}-", check=False)
    for node in nodes.values():
        kube.kubectl("label", "node", node, f"{ROLE}-", check=False)


def test_the_roles_share_no_node_and_doctor_names_a_missing_label(
    stoker: Stoker, trainjob: Callable[[str], str], kube: Kube, labelled: Callable[[], dict[str, str]], reader: Reader
) -> None:
    told = stoker("doctor", "--cluster", check=False)
    assert told.returncode == 78
    for job, role in (("node", "trainer"), ("sampler", "sampler")):
        assert f"runtime {APART}, job {job}: no node has the label {ROLE}={role}" in told.stdout, told.stdout
    words = (trainjob(APART), "--namespace", kube.namespace)
    waiting = stoker("rl", "up", NAMES[0], *words, "--wait", "20", check=False)
    assert (waiting.returncode, "is not ready after 20 s" in waiting.stderr) == (75, True), waiting.stderr
    nodes = labelled()
    assert f"runtime {APART}" not in stoker("doctor", "--cluster", check=False).stdout
    stoker("rl", "up", NAMES[0], *words, "--wait", "900")
    SumsRun(kube, NAMES[0], reader).wait_steps(2, 600)
    for label, role in (("node", "trainer"), ("sampler", "sampler")):
        found = {pod["spec"]["nodeName"] for pod in pods_of(kube, NAMES[0], label)}
        assert found == {nodes[role]}
