"""The short-lived pod that has a run's claim: which image, which claim, which node. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.runs.read import Seen
from stoker.runs.run import part, rows

Object = Mapping[str, Any]

CONTAINER = "get"
LABEL = "stoker.dev/get"
# Where the pod has the claim, and how long it lives if nobody removes it.
MOUNT = "/claim"
SECONDS = 4 * 3600
_WORKSPACE, _NODE = "/workspace", "node"
# Our images' user; runs of other runtimes may name none, and the restricted standard refuses root.
_USER = {"runAsUser": 1001, "runAsGroup": 0}
# What the pod has of a pod of the run: as it is, and in part.
_TAKEN = ("tolerations", "imagePullSecrets", "schedulerName")
_FITS = (*_TAKEN, "securityContext", "nodeSelector")


@dataclass(frozen=True, slots=True)
class ResultLocation:
    """Where a run's result is, and what can read it.

    Attributes:
        claim: the claim.
        folder: the workspace's folder in the claim; empty for the claim itself.
        image: an image with Python.
        pod: what of the spec of a pod of the run fits too, such as its security context and pull secrets.
    """

    claim: str
    folder: str
    image: str
    pod: Object


def place_of(seen: Seen, image: str = "", claim: str = "") -> ResultLocation:
    """Return where a run's result is.

    Args:
        seen: the run.
        image: the user's choice of image; empty for the run's own.
        claim: the user's choice of claim; empty for the run's own.

    Raises:
        RunError: nothing tells.
    """
    name = str(part(seen.trainjob, "metadata").get("name") or "")
    spec = _pod_spec(seen)
    container = _container(rows(spec, "containers"))
    found = image or str(part(part(seen.trainjob, "spec"), "trainer").get("image") or container.get("image") or "")
    if not found:
        raise RunError(
            ExitCode.CONFIG,
            f"{name} has no pod, JobSet or runtime that you can read and that tells its image: name one with --image",
        )
    mount = _mount(container)
    chosen = claim or _claim(seen, spec, mount, name)
    folder = "" if claim else str(mount.get("subPath") or mount.get("subPathExpr") or "")
    return ResultLocation(chosen, folder.replace("$(JOBSET_NAME)", name), found, _kept(spec, *_FITS))


def node_of(claim: Object, pods: Sequence[Object]) -> str:
    """Return the node that a pod must go to for a claim, because the volume is attached there; empty for any.

    Raises:
        RunError: only one pod may have the claim, and one has it.
    """
    modes = part(claim, "spec").get("accessModes") or []
    name = part(claim, "metadata").get("name")
    if "ReadWriteMany" in modes or "ReadOnlyMany" in modes:
        return ""
    for pod in pods:
        named = {
            part(volume, "persistentVolumeClaim").get("claimName") for volume in rows(part(pod, "spec"), "volumes")
        }
        node = str(part(pod, "spec").get("nodeName") or "")
        if name in named and node and part(pod, "status").get("phase") in ("Pending", "Running"):
            if "ReadWriteOncePod" in modes:
                raise RunError(
                    ExitCode.CONFIG,
                    f"the claim {name} is ReadWriteOncePod, and {part(pod, 'metadata').get('name')} has it: stop "
                    "the run (`stoker stop NAME`), or wait for its end",
                )
            return node
    return ""


def pod_of(run: str, suffix: str, place: ResultLocation, node: str = "", *, writes: bool = False) -> dict[str, Any]:
    """Return the pod: as restricted as a namespace may ask for, with the claim, and a life that ends.

    Args:
        run: the run's name.
        suffix: what makes the pod's name its own.
        place: where the result is.
        node: the node it must go to; empty for any.
        writes: True to have the claim writable, else it is read-only.
    """
    own = _kept(part(place.pod, "securityContext"), "runAsUser", "runAsGroup", "fsGroup", "supplementalGroups")
    if own.get("runAsUser") == 0:
        del own["runAsUser"]
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": SECONDS,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            **_USER,
            **own,
            "fsGroupChangePolicy": "OnRootMismatch",
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": CONTAINER,
                "image": place.image,
                "command": ["sh", "-c", f"sleep {SECONDS}"],
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "readOnlyRootFilesystem": True,
                    "runAsNonRoot": True,
                },
                "volumeMounts": [{"name": "claim", "mountPath": MOUNT, "readOnly": not writes}],
            }
        ],
        "volumes": [{"name": "claim", "persistentVolumeClaim": {"claimName": place.claim}}],
        **_kept(place.pod, *_TAKEN),
    }
    # An image is built for one processor. The run's other labels, such as those of GPUs, are not needed to read.
    if arch := part(place.pod, "nodeSelector").get("kubernetes.io/arch"):
        spec["nodeSelector"] = {"kubernetes.io/arch": arch}
    if node:
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        spec["affinity"] = {"nodeAffinity": required}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        # A pod's name has 63 characters at most, as its host name.
        "metadata": {"name": f"{run[:50]}-get-{suffix}", "labels": {LABEL: run[:63]}},
        "spec": spec,
    }


def _pod_spec(seen: Seen) -> Object:
    """Return the spec of the pods that train: from one of them, else from the JobSet, which stays longer."""
    training = {pod.name for pod in seen.run.pods if pod.trains}
    for pod in seen.pods:
        if part(pod, "metadata").get("name") in training:
            return part(pod, "spec")
    jobs = rows(part(seen.jobset or {}, "spec"), "replicatedJobs")
    job = next((job for job in jobs if job.get("name") == "node"), jobs[-1] if jobs else {})
    return part(part(part(part(job, "template"), "spec"), "template"), "spec")


def _container(containers: Sequence[Object]) -> Object:
    """Return the container that trains: others, such as a mesh's proxy, may come before it."""
    named = (one for one in containers if one.get("name") == _NODE)
    mounting = (one for one in containers if _mount(one))
    return next(itertools.chain(named, mounting, containers), {})


def _mount(container: Object) -> Object:
    workspace = next(
        (str(one.get("value")) for one in rows(container, "env") if one.get("name") == "STOKER_WORKSPACE"), _WORKSPACE
    )
    mounts = rows(container, "volumeMounts")
    return next((one for one in mounts if one.get("mountPath") == workspace), {})


def _claim(seen: Seen, spec: Object, mount: Object, name: str) -> str:
    volume = mount.get("name")
    for one in rows(spec, "volumes"):
        if volume is not None and one.get("name") == volume:
            if found := part(one, "persistentVolumeClaim").get("claimName"):
                return str(found)
            raise RunError(
                ExitCode.CONFIG,
                f"the workspace of {name} is not a claim; it was deleted with the pods, and nothing can be read",
            )
    # JobSet adds the volume of a claim that it makes to the pods, and not to its own template.
    for policy in rows(part(seen.jobset or {}, "spec"), "volumeClaimPolicies"):
        for template in rows(policy, "templates"):
            made = part(template, "metadata").get("name")
            if volume in (None, made):
                return f"{made}-{name}"
    return f"initializer-{name}"


def _kept(thing: Object, *names: str) -> dict[str, Any]:
    return {name: thing[name] for name in names if thing.get(name) is not None}
