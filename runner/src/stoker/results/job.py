"""A Kubernetes Job that runs a command on a run's claim: as restricted as a namespace may ask for."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.contract.exits import ExitCode, RunError

WORKSPACE = "/workspace"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
# The label that Kubernetes makes of the Job's name has 63 characters at most; nodes of a run leave it 48 for its own.
_LONGEST = 49
# What our images write to besides the claim (HF_HOME is in /cache), as in the runtimes' pods.
_SCRATCH = {"cache": "/cache", "tmp": "/tmp"}
# How long a Job may run, and how long it can be looked at when it has ended.
_SECONDS = 24 * 3600
# Our images' user; the group is that of the claims.
_USER = {"runAsUser": 1001, "runAsGroup": 0, "fsGroup": 0, "fsGroupChangePolicy": "OnRootMismatch"}
_GPU = "nvidia.com/gpu"
# As the catalogue's profile `nvidia` has it: many clusters keep other pods off nodes with GPUs.
_TOLERATION = {"key": _GPU, "operator": "Exists", "effect": "NoSchedule"}


@dataclass(frozen=True, slots=True)
class Step:
    """A container of the job.

    Attributes:
        name: its name.
        image: its image.
        argv: what it runs.
    """

    name: str
    image: str
    argv: Sequence[str]


@dataclass(frozen=True, slots=True)
class Around:
    """What surrounds the containers.

    Attributes:
        run: the run.
        claim: the claim with the run's workspace.
        memory: what the job asks for.
        gpu: True for one NVIDIA GPU in the last step.
        secret: a Secret whose keys become variables; empty for none.
        pull_secret: a Secret for the registry of the images; empty for none.
        architecture: the processor that the images need; empty for any.
    """

    run: str
    claim: str
    memory: str = "8Gi"
    gpu: bool = False
    secret: str = ""
    pull_secret: str = ""
    architecture: str = ""


def job(purpose: str, steps: Sequence[Step], around: Around) -> dict[str, Any]:
    """Return a Job, each with a name of its own: Kubernetes never changes what a Job runs, and runs it once.

    Args:
        purpose: what it does, which is in its name.
        steps: its containers, one after another.
        around: what surrounds them.

    Raises:
        RunError: the run's name is not a valid name (64).
    """
    if not _NAME.fullmatch(around.run) or len(around.run) > _LONGEST:
        raise RunError(ExitCode.USAGE, f"--job {around.run} is not the name of a run: write that of its TrainJob")
    *before, last = [_container(step, around, is_last=step is steps[-1]) for step in steps]
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {**_USER, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        **({"imagePullSecrets": [{"name": around.pull_secret}]} if around.pull_secret else {}),
        **({"nodeSelector": {"kubernetes.io/arch": around.architecture}} if around.architecture else {}),
        **({"tolerations": [_TOLERATION]} if around.gpu else {}),
        **({"initContainers": before} if before else {}),
        "containers": [last],
        "volumes": [
            {"name": "workspace", "persistentVolumeClaim": {"claimName": around.claim}},
            *({"name": name, "emptyDir": {}} for name in _SCRATCH),
        ],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"{around.run}-{purpose}-{secrets.token_hex(2)}",
            "labels": {"stoker.dev/result-of": around.run},
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": _SECONDS,
            "ttlSecondsAfterFinished": _SECONDS,
            "template": {"metadata": {"labels": {"stoker.dev/result-of": around.run}}, "spec": pod},
        },
    }


def _container(step: Step, around: Around, *, is_last: bool) -> Mapping[str, Any]:
    resources: dict[str, Any] = {
        "requests": {"cpu": "1", "memory": around.memory},
        "limits": {"memory": around.memory},
    }
    if around.gpu and is_last:
        resources["limits"][_GPU] = 1
    return {
        "name": step.name,
        "image": step.image,
        "command": list(step.argv),
        "workingDir": WORKSPACE,
        "env": [{"name": "HOME", "value": "/tmp"}],
        **({"envFrom": [{"secretRef": {"name": around.secret}}]} if around.secret else {}),
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
        },
        "volumeMounts": [
            {"name": "workspace", "mountPath": WORKSPACE},
            *({"name": name, "mountPath": folder} for name, folder in _SCRATCH.items()),
        ],
    }
