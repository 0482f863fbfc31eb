"""Each retry rule on a real cluster: who fails at once, who is tried again, and what that costs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from e2e.conftest import Image
from e2e.kube import Kube
from e2e.trainjobs import LORA_SFT, Reader, Restarts, Run, trainjob

Submit = Callable[[Mapping[str, Any]], Run]

# Long enough to be hit while it trains.
STEPS, SAVED_EVERY = 100, 10
LONG = (*LORA_SFT, f"--max_steps={STEPS}", f"--save_steps={SAVED_EVERY}")


@pytest.mark.parametrize(
    ("name", "args", "code", "fix"),
    [
        ("unknown-flag", [*LORA_SFT, "--learning_rte=1"], 64, "did you mean --learning_rate?"),
        ("model-missing", [*LORA_SFT, "--model_name_or_path=/inputs/nowhere"], 66, "--model_name_or_path"),
        ("data-missing", [*LORA_SFT, "--dataset_name=/inputs/nothing"], 66, "--dataset_name"),
    ],
)
def test_a_users_mistake_fails_the_job_once_and_says_the_fix(
    submit: Submit, kube: Kube, name: str, args: Sequence[str], code: int, fix: str
) -> None:
    run = submit(trainjob(name, args))
    run.wait_failed()
    assert run.restarts() == Restarts(0, 0)
    endings = run.endings()
    assert {ended for ended, _ in endings} == {code}
    assert fix in endings[0][1]
    (job,) = kube.items("jobs", f"jobset.sigs.k8s.io/jobset-name={name}")
    failed = next(c for c in job["status"]["conditions"] if c["type"] == "Failed")
    assert failed["reason"] == "PodFailurePolicy"
    assert failed["message"].endswith("rule at index 2")


def test_a_pod_killed_in_mid_run_restarts_the_job_and_it_finishes(
    submit: Submit, kube: Kube, reader: Reader, image: Image
) -> None:
    run = submit(trainjob("killed", LONG))
    run.wait_steps(SAVED_EVERY + 2)
    kill_container(kube, run.pods()[1], image.reference)
    run.wait_complete(seconds=400)
    assert run.restarts() == Restarts(1, 1)
    manifest = run.manifest(reader)
    assert (manifest["steps"], manifest["world_size"], manifest["attempt"]) == (STEPS, 2, 1)
    assert manifest["resumed_from"] is not None


def test_an_evicted_pod_restarts_the_job_at_no_cost_and_nothing_is_lost(
    submit: Submit, kube: Kube, reader: Reader
) -> None:
    run = submit(trainjob("evicted", LONG))
    run.wait_steps(3)
    evict(kube, run.pods()[0]["metadata"]["name"])
    run.wait_complete(seconds=400)
    assert run.restarts() == Restarts(1, 0)
    manifest = run.manifest(reader)
    assert (manifest["steps"], manifest["world_size"], manifest["attempt"]) == (STEPS, 2, 1)
    assert manifest["resumed_from"] is not None


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
