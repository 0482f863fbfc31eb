"""Pods lost on a real cluster: the job is restarted by the rule that fits, and does all its steps.

The whole matrix of signals and phases is runner/tests/integration/test_kills.py, with local processes; here is what
Kubernetes makes of it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from e2e.conftest import Image
from e2e.kube import Kube
from e2e.trainjobs import LORA_SFT, Reader, Restarts, Run, trainjob

SAVED_EVERY = 10
PATIENCE_SECONDS = 600.0


@dataclass(frozen=True)
class Case:
    """One way to lose pods.

    Attributes:
        how: `evict` (as a drain does), `delete` (kubectl delete pod) or `kill` (SIGKILL to the container).
        phase: what the pods do meanwhile, one of `PHASES`.
        nodes: pods of the job.
        hit: indices of those that are lost.
    """

    how: str
    phase: str
    nodes: int
    hit: tuple[int, ...]

    @property
    def steps(self) -> int:
        """Steps of the job: long enough to be hit while it trains, also where no other pod slows it down."""
        return 100 if self.nodes > 1 else 500

    @property
    def args(self) -> tuple[str, ...]:
        """The trainer's arguments."""
        return (*LORA_SFT, f"--max_steps={self.steps}", f"--save_steps={SAVED_EVERY}")

    @property
    def restarts(self) -> Restarts:
        """What it costs: only a crash counts against maxRestarts."""
        return Restarts(1, 1 if self.how == "kill" else 0)


# Phase → the line of the log that it begins with.
PHASES = {
    "rendezvous": r"\[stoker\] trl.scripts.sft on node",
    "training": rf"(?s)(.*'loss'){{{SAVED_EVERY + 2}}}",
}
CASES = {
    "one-of-two-evicted-in-training": Case("evict", "training", 2, (0,)),
    "one-of-two-deleted-in-training": Case("delete", "training", 2, (1,)),
    "one-of-two-killed-in-training": Case("kill", "training", 2, (1,)),
    "both-evicted-in-training": Case("evict", "training", 2, (0, 1)),
    "one-pod-evicted-in-training": Case("evict", "training", 1, (0,)),
    "one-pod-killed-in-training": Case("kill", "training", 1, (0,)),
    "one-pod-killed-in-rendezvous": Case("kill", "rendezvous", 1, (0,)),
    "one-of-two-deleted-in-rendezvous": Case("delete", "rendezvous", 2, (1,)),
    "both-evicted-in-rendezvous": Case("evict", "rendezvous", 2, (0, 1)),
    "one-pod-deleted-in-training": Case("delete", "training", 1, (0,)),
    "one-of-two-evicted-in-rendezvous": Case("evict", "rendezvous", 2, (1,)),
    "one-of-two-killed-in-rendezvous": Case("kill", "rendezvous", 2, (0,)),
}
# The first eight are for `make test`.
NAMES = [pytest.param(name, id=name, marks=[] if number < 8 else pytest.mark.full) for number, name in enumerate(CASES)]


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest,
    submit_together: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Run]],
    kube: Kube,
    image: Image,
) -> Mapping[str, Run]:
    """A TrainJob for each case that is asked for, all at once; each has lost its pods in its phase."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    asked = {item.callspec.params["name"] for item in items if item.function is test_the_job_does_all_its_steps}
    runs = submit_together(
        [trainjob(name, CASES[name].args, nodes=CASES[name].nodes) for name in CASES if name in asked]
    )
    waiting = dict(runs)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while waiting:
        assert time.monotonic() < deadline, f"never in their phase: {', '.join(waiting)}\n{kube.state()}"
        for name, run in list(waiting.items()):
            if in_phase(run, kube, CASES[name]):
                lose(run, kube, CASES[name], image.reference)
                del waiting[name]
        time.sleep(0.5)
    return runs


def in_phase(run: Run, kube: Kube, case: Case) -> bool:
    """Return whether the pods to be lost are in the phase in which they shall be."""
    pods = run.pods()
    return len(pods) == case.nodes and all(
        re.search(PHASES[case.phase], kube.logs(pods[index]["metadata"]["name"])) for index in case.hit
    )


def lose(run: Run, kube: Kube, case: Case, image: str) -> None:
    """Make the job lose pods."""
    for pod in [run.pods()[index] for index in case.hit]:
        if case.how == "evict":
            evict(kube, pod["metadata"]["name"])
        elif case.how == "delete":
            kube.delete("pod", pod["metadata"]["name"], wait=False)
        else:
            kill_container(kube, pod, image)


@pytest.mark.parametrize("name", NAMES)
def test_the_job_does_all_its_steps(runs: Mapping[str, Run], reader: Reader, name: str) -> None:
    case, run = CASES[name], runs[name]
    run.wait_complete(seconds=600)
    assert run.restarts() == case.restarts
    manifest = run.manifest(reader)
    assert (manifest["steps"], manifest["world_size"], manifest["attempt"]) == (case.steps, case.nodes, 1)
    assert (manifest["resumed_from"] is not None) == (case.phase == "training")


def evict(kube: Kube, pod: str) -> None:
    """Evict a pod as a drain does."""
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": kube.namespace},
    }
    path = f"/api/v1/namespaces/{kube.namespace}/pods/{pod}/eviction"
    kube.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))


def kill_container(kube: Kube, pod: Mapping[str, Any], image: str) -> None:
    """Send SIGKILL to the first process of a pod's container, as a kernel short of memory does.

    No signal from inside reaches it, so this happens from a pod in the node's process namespace.
    """
    system = Kube(kube.cluster, "kube-system")
    name = "e2e-killer"
    system.delete("pod", name)
    system.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "restartPolicy": "Never",
                "hostPID": True,
                "nodeName": pod["spec"]["nodeName"],
                "containers": [
                    {
                        "name": "killer",
                        "image": image,
                        "command": ["python", "-c", _KILL, pod["metadata"]["uid"]],
                        "securityContext": {"privileged": True, "runAsUser": 0},
                    }
                ],
            },
        }
    )
    try:

        def ended() -> bool:
            return (system.get("pod", name) or {}).get("status", {}).get("phase") in ("Succeeded", "Failed")

        system.until("the killer pod to end", ended, 60, every=0.5)
        assert "killed" in system.logs(name), system.logs(name)
    finally:
        system.delete("pod", name)


# The runner is the process of the pod whose parent is not one of the pod's.
_KILL = """
import os, pathlib, signal, sys
uid = sys.argv[1]
mine = {}
for folder in pathlib.Path("/proc").iterdir():
    if folder.name.isdigit():
        try:
            text = (folder / "cgroup").read_text()
            if uid in text or uid.replace("-", "_") in text:
                mine[int(folder.name)] = (folder / "cmdline").read_bytes()
        except OSError:
            pass
runners = [pid for pid, words in mine.items() if b"stoker\\0run" in words]
os.kill(min(runners), signal.SIGKILL)
print("killed", min(runners))
"""
