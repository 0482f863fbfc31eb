"""The commands about a cluster on a real one: a run that waits is explained, followed, stopped, resumed, fetched."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import Cluster
from e2e.conftest import ROOT
from e2e.kube import Kube, UnansweredError, condition, failure
from e2e.trainjobs import LORA_SFT, Run, trainjob
from lint.snippets import adapted, block

NAME = "watched"
LABEL = "stoker.dev/tests-watched"
Stoker = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.full


@pytest.fixture
def kubeconfig(kube: Kube, tmp_path: Path) -> Path:
    """The kubeconfig of somebody with the rights that the guide names, and no others."""
    role = yaml.safe_load(block("docs/guides/watch-runs.md", "Rights", "kind: Role"))
    name = role["metadata"]["name"]
    role["metadata"]["namespace"] = kube.namespace
    bound = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    kube.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
        role,
        {
            "apiVersion": role["apiVersion"],
            "kind": "RoleBinding",
            "metadata": {"name": name},
            "roleRef": bound,
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": kube.namespace}],
        },
    )
    token = kube.kubectl("create", "token", name, "--duration=1h").stdout.strip()
    config = json.loads(kube.kubectl("config", "view", "--raw", "--flatten", "--output", "json").stdout)
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path = tmp_path / "kubeconfig"
    path.touch(mode=0o600)
    path.write_text(json.dumps(config))
    return path


@pytest.fixture
def stoker(cluster: Cluster, kube: Kube, kubeconfig: Path) -> Stoker:
    """Runs a command of `stoker` as a user would, and expects its exit code."""

    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = cluster.run(
            [sys.executable, "-m", "stoker", *words, "--namespace", kube.namespace],
            check=False,
            capture_output=True,
            env={"PYTHONPATH": str(ROOT / "runner/src"), "KUBECONFIG": str(kubeconfig)},
        )
        if done.returncode != code:
            raise failure(f"{words}: {done.returncode}, not {code}\n{kube.state()}", done)
        return done

    return run


@pytest.fixture
def node(cluster: Cluster) -> Iterator[str]:
    """A node that can be labelled; the label goes at the end."""
    system = Kube(cluster, "default")
    name = str(system.items("nodes")[-1]["metadata"]["name"])
    yield name
    system.kubectl("label", "node", name, f"{LABEL}-")


def state(stoker: Stoker) -> str:
    found: dict[str, Any] = json.loads(stoker("status", NAME, "--output", "json").stdout)
    return str(found["state"])


def wait_state(stoker: Stoker, *wanted: str, seconds: float = 240) -> None:
    deadline, found = time.monotonic() + seconds, ""
    while found not in wanted:
        assert time.monotonic() < deadline, f"{found}, not {wanted}"
        time.sleep(2)
        with suppress(UnansweredError):
            found = state(stoker)


def continued(name: str, before: str, steps: int) -> dict[str, Any]:
    """Return a TrainJob that goes on with a deleted one, as the guide says."""
    page, heading = "docs/guides/resume-a-run.md", "Continue a run that failed or was deleted"
    text = adapted(block(page, heading, "kind: TrainJob"), {"initializer-tune": f"initializer-{before}"})
    guide = yaml.safe_load(text)["spec"]
    env = {one["name"]: one["value"] for one in guide["trainer"]["env"]}
    args = [word for word in LORA_SFT if "max_steps" not in word] + [f"--max_steps={steps}"]
    job = trainjob(name, args, nodes=1, env={key: env[key] for key in ("STOKER_ARG_OUTPUT_DIR", "STOKER_RESUME")})
    job["spec"]["runtimePatches"] += guide["runtimePatches"]
    return job


def test_a_run_is_watched_from_pending_to_its_result(
    cluster: Cluster,
    kube: Kube,
    catalogue: Callable[[], None],
    inputs: str,
    stoker: Stoker,
    node: str,
    tmp_path: Path,
) -> None:
    run, second = Run(kube, NAME), Run(kube, f"{NAME}-2")
    run.delete()
    second.delete()
    # Long enough to be stopped on its way.
    args = [word for word in LORA_SFT if "max_steps" not in word] + ["--max_steps=300"]
    job = trainjob(NAME, args, nodes=1, pod={"nodeSelector": {LABEL: "yes"}})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    try:
        # The inputs are on a claim, whose content nobody knows before the run.
        submitted = stoker("submit", str(tmp_path / "job.yaml"))
        assert f"{NAME} is submitted" in submitted.stdout

        # It is pending, and why is told.
        kube.until("the scheduler's verdict", lambda: "Unschedulable" in stoker("runs").stdout, 180)
        # What explains it first is the claim, until that has its volume.
        kube.until("the missing label", lambda: f"{LABEL}=yes" in stoker("explain", NAME).stdout, 180)
        told = stoker("explain", NAME).stdout
        assert f"kubectl get nodes --selector {LABEL}=yes" in told
        Kube(cluster, "default").kubectl("label", "node", node, f"{LABEL}=yes", "--overwrite")

        # It runs, is stopped with a checkpoint, and goes on.
        run.wait_steps(3)
        assert "stops" in stoker("stop", NAME).stdout
        wait_state(stoker, "Stopped")
        assert f"stoker resume {NAME}" in stoker("explain", NAME).stdout
        assert "goes on" in stoker("resume", NAME).stdout
        wait_state(stoker, "Running", "Complete")
        run.wait_log("resuming from")
        assert "node-0 | " in stoker("logs", NAME, "--tail", "5").stdout
        assert NAME in stoker("top", "--times", "1").stdout
        followed = stoker("logs", NAME, "--follow")
        assert "node-0 | " in followed.stdout
        assert f"{NAME} is complete" in followed.stderr

        # The result comes after the pods are gone, and twice is as good as once.
        for pod in run.pods():
            kube.delete("pod", pod["metadata"]["name"])
        for again in (False, True):
            done = stoker("get", NAME, str(tmp_path / "result"))
            assert ("were there already" in done.stdout) is again
        manifest = json.loads((tmp_path / "result/stoker.json").read_text())
        assert manifest["status"] == "finished"
        assert manifest["steps"] == 300
        assert manifest["resumed_from"], "the run did not go on from its checkpoint"
        assert (tmp_path / "result/adapter_model.safetensors").stat().st_size > 0
        kube.until("the pod that read the claim to go", lambda: not kube.items("pods", "stoker.dev/get"), 120)
        assert "complete" in stoker("resume", NAME, code=64).stderr

        # A run that was deleted goes on under another name.
        kube.delete("trainjob", NAME)
        (tmp_path / "again.yaml").write_text(yaml.safe_dump(continued(second.name, NAME, 302)))
        stoker("submit", str(tmp_path / "again.yaml"))
        second.wait_complete()
        stoker("get", second.name, str(tmp_path / "again"), "--claim", f"initializer-{NAME}")
        manifest = json.loads((tmp_path / "again/stoker.json").read_text())
        assert (manifest["steps"], bool(manifest["resumed_from"])) == (302, True)
    finally:
        second.delete()
        run.delete()


def test_a_claim_for_one_node_is_read_on_that_node_and_without_pods(
    kube: Kube, catalogue: Callable[[], None], inputs: str, stoker: Stoker, tmp_path: Path
) -> None:
    run = Run(kube, f"{NAME}-alone")
    run.delete()
    args = [word for word in LORA_SFT if "_steps" not in word]
    args += ["--max_steps=600", "--logging_steps=1", "--save_steps=20", "--save_total_limit=99"]
    job = trainjob(run.name, args, nodes=1)
    job["spec"]["runtimeRef"]["kind"] = "TrainingRuntime"
    runtime = kube.get("clustertrainingruntime", job["spec"]["runtimeRef"]["name"])
    assert runtime is not None
    # As the catalogue renders it with workspace.accessModes={ReadWriteOnce}.
    own = {"apiVersion": runtime["apiVersion"], "kind": "TrainingRuntime", "spec": runtime["spec"]}
    own["metadata"] = {"name": runtime["metadata"]["name"], "labels": runtime["metadata"]["labels"]}
    for policy in own["spec"]["template"]["spec"]["volumeClaimPolicies"]:
        for template in policy["templates"]:
            template["spec"]["accessModes"] = ["ReadWriteOnce"]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    kube.apply(own)
    try:
        stoker("submit", str(tmp_path / "job.yaml"))
        run.wait_steps(22)
        (pod,) = run.pods()
        # What the run still writes cannot be compared, and is refused.
        stoker("get", run.name, str(tmp_path / "early"), "--all", "--only", "checkpoint-20/adapter_config.json")
        assert (tmp_path / "early/checkpoint-20/adapter_config.json").stat().st_size > 0
        place = f"{kube.namespace}/{run.name}-get-"
        (told,) = [event["message"] for event in kube.items("events") if place in event.get("message", "")]
        assert told.endswith(f" to {pod['spec']['nodeName']}")
        assert condition(run.object(), "Complete") is None, "the run was over before its claim was read"

        run.wait_complete()
        kube.delete("pod", pod["metadata"]["name"])
        stoker("get", run.name, str(tmp_path / "result"))
        assert json.loads((tmp_path / "result/stoker.json").read_text())["steps"] == 600
    finally:
        run.delete()
        kube.delete("trainingruntime", own["metadata"]["name"])
