"""One training run of benchmarks/async_grpo.py as a TrainJob, which kubectl submits, follows and removes."""

from __future__ import annotations

import copy
import json
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from benchmarks.async_grpo_runs import Size, Trained, flags_of, numbers, trained
from benchmarks.jobs import ROOT, JobFailed, run_job

README, EXAMPLE = "examples/async-grpo/README.md", ROOT / "examples" / "async-grpo" / "trainjob.yaml"
CLAIM = "async-grpo-inputs"
_REWARDS = Path(__file__).with_name("async_grpo_rewards.py")
# Where pods see the file with the rewards.
_FOLDER = "/benchmark"
_LOOK_SECONDS = 1.0

Found = TypeVar("Found")


class ClusterError(Exception):
    """The cluster cannot be used; the message says why, and what to do."""


class TrainJobs:
    """TrainJobs of the example, one after the other. Each has pods of its own, and leaves nothing.

    Args:
        runtime: the runtime's name.
        namespace: theirs; None for the one that kubectl chooses.
        patience: seconds of silence before a run is given up.

    Raises:
        ClusterError: there is no kubectl, or the cluster lacks the runtime or the claim with the inputs.
    """

    def __init__(self, runtime: str, namespace: str | None, patience: float) -> None:
        self._runtime, self._patience = runtime, patience
        self._kubectl_words = ["kubectl", *(["--namespace", namespace] if namespace else [])]
        self._example: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
        # What it makes has names of its own: what a run before left, or one beside it has, is not touched.
        self._name, self._count = f"benchmark-{secrets.token_hex(3)}", 0
        if shutil.which("kubectl") is None:
            raise ClusterError("kubectl is missing: install it, and point it at the cluster")
        try:
            found = json.loads(self._kubectl("get", "clustertrainingruntime", runtime, "--output", "json"))
            self._kubectl("get", "persistentvolumeclaim", CLAIM)
        except ClusterError as error:
            raise ClusterError(f"{error}; {README} says under 'On your cluster' how to make both") from error
        self._jobs = [job["name"] for job in found["spec"]["template"]["spec"]["replicatedJobs"]]
        self._kubectl("create", "configmap", self._name, f"--from-file={_REWARDS}")

    def close(self) -> None:
        """Remove what the runs shared."""
        self._kubectl("delete", "configmap", self._name, "--ignore-not-found")

    def run(self, size: Size, reward: str, seed: int) -> Trained:
        """Train once.

        Args:
            size: how much.
            reward: the reward function, as users name it.
            seed: of the run.

        Raises:
            JobFailed: the TrainJob failed, or kubectl did.
        """
        self._count += 1
        name = f"{self._name}-{self._count}"
        made = trainjob(self._example, name, self._runtime, self._jobs, self._name, flags_of(size, reward, seed))
        try:
            self._kubectl("create", "--filename", "-", stdin=json.dumps(made))
            pod = self._until(f"the node of TrainJob {name} to start", lambda: self._started(name))
            command = [*self._kubectl_words, "logs", "--follow", pod, "--container", "node"]
            run = run_job(command, {}, self._patience)
            if run.total is None:
                return Trained(run)
            ended = self._until(f"TrainJob {name} to end", lambda: self._ended(name))
            if ended["type"] != "Complete":
                raise JobFailed(f"TrainJob {name} failed: {ended['message']}")
            if not run.summary:
                raise JobFailed(f"TrainJob {name} lost its node while it trained, and began anew")
            return trained(run, [numbers(line) for _, line in run.steps])
        except ClusterError as error:
            raise JobFailed(str(error)) from error
        finally:
            # Its pods are gone before the next run starts.
            self._kubectl("delete", "trainjob", name, "--cascade=foreground", "--ignore-not-found", "--timeout=5m")
            self._kubectl("delete", "persistentvolumeclaim", f"initializer-{name}", "--ignore-not-found")

    def _started(self, name: str) -> str | None:
        """Return the name of the pod of a TrainJob's node, once it has started."""
        selector = f"jobset.sigs.k8s.io/jobset-name={name},jobset.sigs.k8s.io/replicatedjob-name=node"
        pods = json.loads(self._kubectl("get", "pods", "--selector", selector, "--output", "json"))["items"]
        started = [str(pod["metadata"]["name"]) for pod in pods if pod["status"].get("phase") != "Pending"]
        return started[0] if started else None

    def _ended(self, name: str) -> dict[str, Any] | None:
        """Return the condition with which a TrainJob ended, once it has."""
        status = json.loads(self._kubectl("get", "trainjob", name, "--output", "json")).get("status", {})
        ends = ("Complete", "Failed")
        found = (one for one in status.get("conditions", ()) if one["type"] in ends and one["status"] == "True")
        return next(found, None)

    def _until(self, what: str, look: Callable[[], Found | None]) -> Found:
        end = time.monotonic() + self._patience
        while (found := look()) is None:
            if time.monotonic() > end:
                raise JobFailed(f"{what}: not within {self._patience:.0f} s")
            time.sleep(_LOOK_SECONDS)
        return found

    def _kubectl(self, *words: str, stdin: str | None = None) -> str:
        command = [*self._kubectl_words, *words]
        done = subprocess.run(command, check=False, capture_output=True, text=True, input=stdin)
        if done.returncode:
            raise ClusterError(f"kubectl {' '.join(words[:3])} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout


def trainjob(
    example: Mapping[str, Any], name: str, runtime: str, jobs: Collection[str], rewards: str, flags: Mapping[str, str]
) -> dict[str, Any]:
    """Return the example's TrainJob for one node with other flags.

    Args:
        example: that TrainJob.
        name: of the new one.
        runtime: its runtime.
        jobs: the jobs that the runtime has; patches of others are left out.
        rewards: the ConfigMap with the file of rewards.
        flags: on top of the example's.
    """
    made = copy.deepcopy(dict(example))
    made["metadata"]["name"] = name
    made["spec"]["runtimeRef"]["name"] = runtime
    trainer = made["spec"]["trainer"]
    trainer["numNodes"] = 1
    # On a small machine samplers want the processors too.
    trainer["env"] = [{"name": "PYTHONPATH", "value": _FOLDER}, {"name": "OMP_NUM_THREADS", "value": "1"}]
    trainer["args"] += [f"--{flag}={value}" for flag, value in flags.items()]  # the last of a flag counts
    (patch,) = made["spec"]["runtimePatches"]
    patched = patch["trainingRuntimeSpec"]["template"]["spec"]
    patched["replicatedJobs"] = [job for job in patched["replicatedJobs"] if job["name"] in jobs]
    (node,) = (job for job in patched["replicatedJobs"] if job["name"] == "node")
    pod = node["template"]["spec"]["template"]["spec"]
    pod["volumes"].append({"name": "rewards", "configMap": {"name": rewards}})
    pod["containers"][0]["volumeMounts"].append({"name": "rewards", "mountPath": _FOLDER, "readOnly": True})
    return made
