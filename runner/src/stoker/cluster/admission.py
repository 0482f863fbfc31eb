"""What Kubeflow Trainer and JobSet would refuse in a TrainJob, or accept with an unexpected effect. Pure.

Rules of Trainer v2.3.0 (the CRD, kept as schemas/trainjob-v1alpha1.json; pkg/runtime/framework/plugins/{torch,jobset}:
Validate) and of JobSet v0.12.0 (pkg/webhooks/jobset_webhook.go). Trainer refuses at `kubectl apply`; what JobSet
refuses shows only as an event of the TrainJob.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from stoker.cluster.container_resources import resource_problems
from stoker.cluster.schema import shape_problems, without_nulls
from stoker.contract.variables import LAUNCHER
from stoker.frameworks.torchtune import admission as torchtune

API_VERSION = "trainer.kubeflow.org/v1alpha1"
_INITIALIZERS = {"dataset": "dataset-initializer", "model": "model-initializer"}
# What has variables of its own in a TrainJob.
_ENVIRONMENTS = (("spec", "trainer"), *(("spec", "initializer", part) for part in _INITIALIZERS))
_VOLUME = "initializer"
_NODE = "node"
_NAME = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
_URI = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://.+$")
_MAX_NAME = 63
# Kubernetes adds this to a pod's name, and the part after the dash to generateName.
_POD_SUFFIX = "-abcde"
# Old name → current name.
_MOVED = dict.fromkeys(("podSpecOverrides", "podTemplateOverrides"), "runtimePatches (Trainer v2.2 and later)")

# A CRD leaves metadata to Kubernetes, so its schema stands here.
_LABEL = {"type": "string", "maxLength": 63, "pattern": "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"}
_TEXT = {"type": "string"}
_METADATA = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("name", "generateName", "namespace", "uid", "resourceVersion", "selfLink"), _TEXT),
        **{key: {} for key in ("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")},
        **{key: {"type": "array"} for key in ("finalizers", "ownerReferences", "managedFields")},
        "labels": {"type": "object", "additionalProperties": _LABEL},
        "annotations": {"type": "object", "additionalProperties": _TEXT},
    },
}


@dataclass(frozen=True, slots=True)
class Admission:
    """How the cluster would answer a TrainJob.

    Attributes:
        problems: why the cluster would refuse it, or could never start it.
        notices: what the cluster would accept, with an effect that is easy to miss.
    """

    problems: tuple[str, ...]
    notices: tuple[str, ...]


def admission_of(trainjob: Mapping[str, Any], runtime: Mapping[str, Any]) -> Admission:
    """Return how the cluster would answer a TrainJob.

    Args:
        trainjob: a TrainJob, valid or not.
        runtime: its (Cluster)TrainingRuntime, valid or not.
    """
    trainjob = without_nulls(trainjob)
    jobs = list(_jobs(runtime))
    problems = [
        *shape_of(trainjob),
        *_version(trainjob),
        *_environment(trainjob),
        *_name(trainjob, jobs, _completions(runtime)),
        *(_torch(trainjob, jobs) if _at(runtime, "spec", "mlPolicy", "torch") is not None else ()),
        *_resources(trainjob, jobs),
        *_other_resources(jobs),
        *_initializers(trainjob, jobs),
        *_patches(trainjob, jobs, _claims(runtime)),
    ]
    return Admission(tuple(dict.fromkeys(problems)), tuple(_notices(trainjob, runtime)))


@cache
def _schema() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("schemas/trainjob-v1alpha1.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    schema["properties"] |= {"metadata": _METADATA, "status": {}}
    return schema


def shape_of(trainjob: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the fields of a TrainJob, by Trainer's own schema."""
    spec = trainjob.get("spec")
    known = {name: value for name, value in spec.items() if name not in _MOVED} if isinstance(spec, dict) else spec
    for name in spec if isinstance(spec, dict) else ():
        if name in _MOVED:
            yield f"spec has no field {name!r}: write {_MOVED[name]}"
    yield from shape_problems({**trainjob, **({"spec": known} if "spec" in trainjob else {})}, _schema())


def _environment(trainjob: Mapping[str, Any]) -> Iterator[str]:
    for where in _ENVIRONMENTS:
        for entry in _items(_at(trainjob, *where, "env")):
            source, name = entry.get("valueFrom"), f"env {entry.get('name')} of {'.'.join(where)}"
            if source is not None and entry.get("value"):
                yield f"{name} has both value and valueFrom, so no pod can start: keep one of them"
            if isinstance(source, dict) and len(source) != 1:
                yield f"valueFrom of {name} has {len(source)} sources: write one, for example secretKeyRef"


def _version(trainjob: Mapping[str, Any]) -> Iterator[str]:
    if trainjob.get("apiVersion") != API_VERSION:
        yield f"apiVersion of the TrainJob is {trainjob.get('apiVersion')!r}: write {API_VERSION}"
    group = _at(trainjob, "spec", "runtimeRef", "apiGroup")
    if group and group != API_VERSION.partition("/")[0]:
        yield f"spec.runtimeRef.apiGroup is {group!r}: drop it, or write {API_VERSION.partition('/')[0]}"


def _name(
    trainjob: Mapping[str, Any], jobs: list[tuple[str, Mapping[str, Any]]], completions: Mapping[str, int]
) -> Iterator[str]:
    name, prefix = _at(trainjob, "metadata", "name"), _at(trainjob, "metadata", "generateName")
    if isinstance(prefix, str) and prefix and not name:
        # Trainer names the JobSet after the TrainJob, so generateName works too.
        name = f"{prefix}{_POD_SUFFIX[1:]}"
    if not isinstance(name, str) or not name:
        yield "the TrainJob has no name: write metadata.name"
        return
    if not _NAME.match(name):
        yield f"Trainer refuses the name {name!r}: write lowercase letters, digits and '-', and begin with a letter"
    nodes = _whole(_at(trainjob, "spec", "trainer", "numNodes"))
    for job, _ in jobs:
        last = nodes - 1 if job == _NODE and nodes else completions.get(job, 1) - 1
        too_long = len(f"{name}-{job}-0-{last}{_POD_SUFFIX}") - _MAX_NAME
        if too_long > 0:
            yield (
                f"the name {name!r} is too long: the pods of the runtime's job {job!r} get longer names, and "
                f"{_MAX_NAME} characters are allowed; write {len(name) - too_long} or fewer (JobSet refuses it, and "
                "only an event of the TrainJob says so)"
            )
            return


def _torch(trainjob: Mapping[str, Any], jobs: list[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    yield from _reserved(trainjob)
    trainer = _at(trainjob, "spec", "trainer") or {}
    if not isinstance(trainer, dict) or trainer.get("command") != list(torchtune.COMMAND):
        return
    nodes, processes, args = trainer.get("numNodes"), trainer.get("numProcPerNode"), trainer.get("args")
    yield from torchtune.problems_of(
        str(_at(trainjob, "spec", "runtimeRef", "name")),
        [str(word) for word in args] if isinstance(args, list) else [],
        _whole(nodes) or 1,
        _whole(processes),
        _gpus(trainer, jobs),
    )


def _gpus(trainer: Mapping[str, Any], jobs: list[tuple[str, Mapping[str, Any]]]) -> int | None:
    """Return the GPUs of each pod as Trainer counts them; None if no resources are named."""
    nodes = (c for name, pod in jobs if name == _NODE for c in _items(pod.get("containers")) if c.get("name") == _NODE)
    resources = trainer.get("resourcesPerNode") or next((c.get("resources") for c in nodes), None)
    if not isinstance(resources, dict):
        return None
    for kind in ("requests", "limits"):
        amounts = resources.get(kind)
        for name, amount in amounts.items() if isinstance(amounts, dict) else ():
            if "gpu" in str(name).lower() and (count := _whole(amount)):
                return count
    return 0


def _whole(value: object) -> int | None:
    """Return a whole number, also one that is written as text or as 2.0; None for anything else."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return int(str(value)) if str(value).isdecimal() else None


def _resources(trainjob: Mapping[str, Any], jobs: list[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    for pod in (pod for name, pod in jobs if name == _NODE):
        for container in _items(pod.get("containers")):
            if container.get("name") == _NODE:
                asked = _at(trainjob, "spec", "trainer", "resourcesPerNode") or {}
                yield from resource_problems(container.get("resources") or {}, asked)
                has = {str(claim.get("name")) for claim in _items(pod.get("resourceClaims"))}
                for claim in _items(_at(asked, "claims")):
                    if claim.get("name") not in has:
                        others = f"only has: {', '.join(sorted(has))}" if has else "has none"
                        yield f"resourcesPerNode claims {claim.get('name')!r}, but the runtime's pod {others}"


def _other_resources(jobs: list[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    """Check the containers that no TrainJob gives resources, such as those of samplers."""
    for name, pod in jobs:
        for container in (*_items(pod.get("initContainers")), *_items(pod.get("containers"))):
            if (name, container.get("name")) != (_NODE, _NODE):
                pods = f"the pods of the job {name} (container {container.get('name')})"
                yield from resource_problems(container.get("resources") or {}, {}, pods, "correct them in the runtime")


def _reserved(trainjob: Mapping[str, Any]) -> Iterator[str]:
    for entry in _items(_at(trainjob, "spec", "trainer", "env")):
        if entry.get("name") in LAUNCHER:
            yield (
                f"env {entry['name']} is set by Trainer, which refuses it in spec.trainer.env: write numNodes for the "
                "number of nodes and numProcPerNode for the processes on each"
            )


def _initializers(trainjob: Mapping[str, Any], jobs: list[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    for part, job in _INITIALIZERS.items():
        asked = _at(trainjob, "spec", "initializer", part)
        if not isinstance(asked, dict):
            continue
        uri = asked.get("storageUri")
        if uri and not _URI.match(str(uri)):
            yield f"spec.initializer.{part}.storageUri is {uri!r}: write scheme://…, for example hf://owner/name"
        pods = [pod for name, pod in jobs if name == job]
        containers = [c for pod in pods for c in _items(pod.get("containers")) if c.get("name") == job]
        if not containers:
            yield (
                f"spec.initializer.{part} is set, but the runtime has no job {job!r} with a container of that name: "
                f"remove it, or choose a runtime that fetches the {part}"
            )
        elif not any(m.get("name") == _VOLUME for c in containers for m in _items(c.get("volumeMounts"))):
            yield f"the runtime's container {job!r} mounts no volume {_VOLUME!r}: Trainer requires it, so add the mount"


def _patches(trainjob: Mapping[str, Any], jobs: list[tuple[str, Mapping[str, Any]]], claims: set[str]) -> Iterator[str]:
    pods = dict(jobs)
    for patch in _items(_at(trainjob, "spec", "runtimePatches")):
        manager = patch.get("manager")
        if not isinstance(manager, str) or not re.match(r"^[a-z0-9.-]+/\S+$", manager):
            yield f"manager of a runtimePatch is {manager!r}: write <your domain>/<name>, for example example.com/team"
        for job in _items(_at(patch, "trainingRuntimeSpec", "template", "spec", "replicatedJobs")):
            name = str(job.get("name"))
            if name not in pods:
                yield f"a runtimePatch names job {name!r}, but the runtime only has: {', '.join(pods)}"
                continue
            patched = _at(job, "template", "spec", "template", "spec")
            for kind in ("initContainers", "containers"):
                has = {str(c.get("name")) for k in ("initContainers", "containers") for c in _items(pods[name].get(k))}
                for container in _items(patched.get(kind) if isinstance(patched, dict) else None):
                    yield from _container_patch(name, container, has)
                    volumes = [*_items(pods[name].get("volumes")), *_items(_at(patched, "volumes"))]
                    yield from _mounts(container, claims | {str(volume.get("name")) for volume in volumes})


def _container_patch(job: str, container: Mapping[str, Any], has: set[str]) -> Iterator[str]:
    name = str(container.get("name"))
    if name not in has:
        others = ", ".join(sorted(has))
        yield f"a runtimePatch names container {name!r}, but the runtime's job {job!r} only has: {others}"
    elif container.get("env") and name in (_NODE, *_INITIALIZERS.values()):
        where = "spec.trainer.env" if name == _NODE else "spec.initializer"
        yield f"a runtimePatch sets env of container {name!r}, but Trainer refuses that: write it in {where}"


def _mounts(container: Mapping[str, Any], volumes: set[str]) -> Iterator[str]:
    for mount in _items(container.get("volumeMounts")):
        if mount.get("name") not in volumes:
            yield (
                f"a runtimePatch mounts volume {mount.get('name')!r}, but neither the runtime's pod nor the patch has "
                f"it: add it to the patch's volumes, or write one of {', '.join(sorted(volumes))}"
            )


def _claims(runtime: Mapping[str, Any]) -> set[str]:
    """Return the volumes that JobSet adds for claims, of a runtime that may be invalid."""
    policies = _items(_at(runtime, "spec", "template", "spec", "volumeClaimPolicies"))
    return {str(_at(claim, "metadata", "name")) for policy in policies for claim in _items(policy.get("templates"))}


def _notices(trainjob: Mapping[str, Any], runtime: Mapping[str, Any]) -> Iterator[str]:
    if _at(trainjob, "spec", "suspend") is True:
        yield "spec.suspend is true: nothing starts until it is set to false"
    if _at(runtime, "metadata", "labels", "trainer.kubeflow.org/support") == "deprecated":
        yield "the runtime is deprecated (label trainer.kubeflow.org/support): choose another before it is removed"


def _jobs(runtime: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and the pod spec of each job of a runtime."""
    for job in _items(_at(runtime, "spec", "template", "spec", "replicatedJobs")):
        pod = _at(job, "template", "spec", "template", "spec")
        yield str(job.get("name")), pod if isinstance(pod, dict) else {}


def _completions(runtime: Mapping[str, Any]) -> dict[str, int]:
    """Return how many pods the runtime gives each job, where it says so."""
    found = {}
    for job in _items(_at(runtime, "spec", "template", "spec", "replicatedJobs")):
        count = _at(job, "template", "spec", "completions")
        if isinstance(count, int) and count > 0:
            found[str(job.get("name"))] = count
    if nodes := _whole(_at(runtime, "spec", "mlPolicy", "numNodes")):
        found[_NODE] = nodes  # Trainer sets it, whatever the job says
    return found


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _items(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
