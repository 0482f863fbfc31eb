"""TrainJobs as the tests submit and watch them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.tests.samples import check

import builders
from e2e.kube import Kube, condition
from e2e.pods import CONTAINER_SECURITY, POD_SECURITY, claim_mounts, claim_volumes

RUNTIME = "trl-distributed"
INPUTS_CLAIM = "sft-lora-inputs"

# LoRA SFT of the example's base model, short enough for a test: two pods take about half a minute.
LORA_SFT = (
    "--model_name_or_path=/inputs/model",
    "--dataset_name=/inputs/dataset",
    "--use_peft",
    "--lora_target_modules=all-linear",
    "--per_device_train_batch_size=8",
    "--max_steps=6",
    "--logging_steps=1",
    "--save_steps=2",
    "--max_length=64",
)


def trainjob(
    name: str,
    args: Sequence[str] = LORA_SFT,
    *,
    nodes: int | None = 2,
    processes: int | None = None,
    command: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    trainer: bool = True,
    runtime: str = RUNTIME,
    pod: Mapping[str, Any] | None = None,
    mounts: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return a TrainJob whose pods see the base model and the data at /inputs.

    Args:
        name: its name.
        args: arguments of the trainer container.
        nodes: numNodes; None leaves it to the runtime.
        processes: numProcPerNode; None leaves it out.
        command: command of the trainer container; None leaves the runtime's.
        env: variables of the trainer container.
        trainer: False leaves spec.trainer out altogether.
        runtime: the runtime's name.
        pod: further fields of the pod, patched in.
        mounts: further volume mounts of the container.
    """
    given: dict[str, Any] = {
        "numNodes": nodes,
        "numProcPerNode": processes,
        "command": list(command) if command else None,
        "args": list(args),
        "env": builders.variables(env or {}) or None,
    }
    inputs = {"name": "inputs", "persistentVolumeClaim": {"claimName": INPUTS_CLAIM}}
    container = {"name": "node", "volumeMounts": [{"name": "inputs", "mountPath": "/inputs"}, *mounts]}
    patch = {"volumes": [inputs], "containers": [container], **(pod or {})}
    return builders.trainjob(
        name,
        runtime=runtime,
        with_trainer=trainer,
        spec=builders.patches(builders.job_of_pod("node", **patch)),
        **{key: value for key, value in given.items() if value is not None},
    )


@dataclass(frozen=True)
class Restarts:
    """How often a JobSet was restarted.

    Attributes:
        total: all restarts.
        counted: those that count against maxRestarts.
    """

    total: int
    counted: int


class Run:
    """A submitted TrainJob.

    Args:
        kube: its namespace.
        name: its name.
    """

    def __init__(self, kube: Kube, name: str) -> None:
        self.kube = kube
        self.name = name

    def pods(self) -> list[dict[str, Any]]:
        """Return its trainer pods by index."""
        selector = f"jobset.sigs.k8s.io/jobset-name={self.name},jobset.sigs.k8s.io/replicatedjob-name=node"
        pods = self.kube.items("pods", selector)
        return sorted(pods, key=lambda pod: int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]))

    def object(self) -> dict[str, Any]:
        """Return the TrainJob as it is now."""
        found = self.kube.get("trainjob", self.name)
        assert found is not None, f"TrainJob {self.name} is gone"
        return found

    def restarts(self) -> Restarts:
        """Return how often its JobSet was restarted."""
        jobset = self.kube.get("jobset", self.name) or {}
        status = jobset.get("status", {})
        return Restarts(status.get("restarts", 0), status.get("restartsCountTowardsMax", 0))

    def wait_ended(self, seconds: float = 300, every: float = 2) -> dict[str, Any]:
        """Wait until it is Complete or Failed, looking `every` so many seconds, and return it.

        Raises:
            AssertionError: it was not in time.
        """

        def ended() -> dict[str, Any] | None:
            found = self.object()
            return found if condition(found, "Complete") or condition(found, "Failed") else None

        return self.kube.until(f"{self.name} to end", ended, seconds, every)

    def wait_complete(self, seconds: float = 300, every: float = 2) -> dict[str, Any]:
        """Wait until it is Complete, looking `every` so many seconds, and return it.

        Raises:
            AssertionError: it failed, or was not in time.
        """
        done = self.wait_ended(seconds, every)
        assert condition(done, "Complete"), f"{condition(done, 'Failed')}\n{self.kube.state()}"
        return done

    def wait_failed(self, seconds: float = 180) -> dict[str, Any]:
        """Wait until it is Failed and return it.

        Raises:
            AssertionError: it completed, or was not in time.
        """
        done = self.wait_ended(seconds)
        assert condition(done, "Failed"), f"{self.name} completed, it should have failed"
        return done

    def wait_log(self, pattern: str, index: int | None = 0, seconds: float = 240) -> str:
        """Wait until the log of one of its pods matches a pattern, and return that pod's name.

        Args:
            pattern: a regular expression.
            index: the pod's completion index; None for any.
            seconds: how long to wait.
        """

        def matching() -> str | None:
            for pod in self.pods():
                name, labels = pod["metadata"]["name"], pod["metadata"]["labels"]
                asked = index is None or labels["batch.kubernetes.io/job-completion-index"] == str(index)
                ending = pod["metadata"].get("deletionTimestamp") is not None
                if asked and not ending and re.search(pattern, self.kube.logs(name)):
                    return str(name)
            return None

        return self.kube.until(f"{self.name}: a log line like {pattern!r} of pod {index}", matching, seconds)

    def wait_steps(self, steps: int, seconds: float = 240) -> None:
        """Wait until its first pod has logged that many steps."""

        def enough() -> bool:
            pods = self.pods()
            return bool(pods) and self.kube.logs(pods[0]["metadata"]["name"]).count("'loss'") >= steps

        self.kube.until(f"{self.name}: {steps} steps", enough, seconds)

    def endings(self) -> list[tuple[int, str]]:
        """Return exit code and termination message of each trainer pod that has ended."""
        statuses = [status for pod in self.pods() for status in pod["status"].get("containerStatuses", ())]
        ended = [status["state"]["terminated"] for status in statuses if "terminated" in status["state"]]
        return [(state["exitCode"], state.get("message", "")) for state in ended]

    def log(self, index: int = 0) -> str:
        """Return the log of the pod with that index."""
        return self.kube.logs(self.pods()[index]["metadata"]["name"])

    def read(self, path: str, reader: Reader) -> str:
        """Return a file of its workspace."""
        return reader.read(f"initializer-{self.name}", path)

    def manifest(self, reader: Reader) -> dict[str, Any]:
        """Return the run's own record of what it did."""
        found: dict[str, Any] = json.loads(self.read("output/stoker.json", reader))
        check(found, "manifest-v1")
        return found

    def delete(self) -> None:
        """Delete it with its claim."""
        self.kube.delete("trainjob", self.name)
        self.kube.delete("pvc", f"initializer-{self.name}", wait=False)

    def is_gone(self) -> bool:
        """Return whether nothing is left of it: its JobSet, its claim and its pods."""
        claim = self.kube.get("pvc", f"initializer-{self.name}")
        return not (claim or self.kube.get("jobset", self.name) or self.pods())


class Reader:
    """Reads claims through short-lived pods of the trainer image.

    Args:
        kube: the namespace of the claims.
        image: the image.
        name: what its pods' names begin with, of its own for each image.
    """

    def __init__(self, kube: Kube, image: str, name: str = "reader") -> None:
        self.kube = kube
        self._name = name
        self.image = image
        self._count = 0

    def read(self, claim: str, path: str) -> str:
        """Return a file of a claim.

        Raises:
            AssertionError: there is none.
        """
        return self.run(["cat", f"/claims/{claim}/{path}"], [claim])

    def write(self, claim: str, path: str, text: str) -> None:
        """Write a text file of a claim."""
        self.run(["python", "-c", _WRITE, f"/claims/{claim}/{path}", text], [claim])

    def copy(self, folder: Path, claim: str, place: str = ".") -> None:
        """Copy what lies in a folder of this machine into a claim, or into a folder that it has."""
        with self._pod(["sleep", "600"], [claim]) as name:
            self.kube.kubectl("wait", "--for=condition=Ready", "--timeout=300s", f"pod/{name}")
            self.kube.kubectl("cp", f"{folder}/.", f"{self.kube.namespace}/{name}:/claims/{claim}/{place}")

    def run(self, command: Sequence[str], claims: Sequence[str], seconds: float = 180) -> str:
        """Run a command in a pod that has the claims at /claims/<name>, and return what it printed.

        Raises:
            AssertionError: it failed.
        """
        with self._pod(command, claims) as name:

            def ended() -> str | None:
                phase = (self.kube.get("pod", name) or {}).get("status", {}).get("phase")
                return phase if phase in ("Succeeded", "Failed") else None

            phase = self.kube.until(f"pod {name} ({' '.join(command)}) to end", ended, seconds, every=0.5)
            log = self.kube.until(f"the log of pod {name}", lambda: self._log(name), 300).stdout
            assert phase == "Succeeded", log
            return log

    def _log(self, pod: str) -> subprocess.CompletedProcess[str] | None:
        """Ask for a pod's log; None if its node does not answer."""
        done = self.kube.kubectl("logs", pod, check=False)
        return done if done.returncode == 0 else None

    @contextmanager
    def _pod(self, command: Sequence[str], claims: Sequence[str]) -> Iterator[str]:
        """Have a pod with a command while the body runs; yields its name."""
        self._count += 1
        name = f"{self._name}-{self._count}"
        pod = reader_pod(name, self.image, command, claims)
        pod["spec"]["terminationGracePeriodSeconds"] = 0  # its name is free at once
        self.kube.create(pod)
        try:
            yield name
        finally:
            self.kube.delete("pod", name, wait=False)


_WRITE = """
import pathlib, sys
path = pathlib.Path(sys.argv[1])
path.parent.mkdir(exist_ok=True)
path.write_text(sys.argv[2])
"""


def reader_pod(name: str, image: str, command: Sequence[str], claims: Sequence[str]) -> dict[str, Any]:
    """Return a pod of the trainer image, as restricted as the runtime's own."""
    scratch = [{"name": "cache", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": POD_SECURITY,
            "containers": [
                {
                    "name": "reader",
                    "image": image,
                    "command": list(command),
                    "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "2Gi"}},
                    "securityContext": CONTAINER_SECURITY,
                    "volumeMounts": [
                        *claim_mounts(claims),
                        {"name": "cache", "mountPath": "/cache"},
                        {"name": "tmp", "mountPath": "/tmp"},
                    ],
                }
            ],
            "volumes": [*claim_volumes(claims), *scratch],
        },
    }
