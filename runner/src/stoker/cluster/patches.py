"""Merges the runtimePatches of a TrainJob into its runtime, as Trainer does before anything else. Pure.

Trainer v2.3.0 uses Kubernetes' strategic merge (pkg/runtime/core/trainingruntime.go); of its lists, those are merged by
key whose content matters here. A patch of a job or container that the runtime does not have is left out: admission
refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# List of a pod or container → the key by which its items are merged.
_KEYS = {"containers": "name", "initContainers": "name", "volumes": "name", "volumeMounts": "mountPath"}
# Lists whose items a patch may add.
_GROWING = ("volumes", "volumeMounts")


def patched(trainjob: Mapping[str, Any], runtime: Mapping[str, Any]) -> dict[str, Any]:
    """Return a runtime with the patches of a TrainJob."""
    patches = {name: [patch for found, patch in _patches(trainjob) if found == name] for name, _ in _patches(trainjob)}
    jobset = runtime["spec"]["template"]["spec"]
    jobs = []
    for job in jobset["replicatedJobs"]:
        for patch in patches.get(str(job.get("name")), ()):
            job = _merged(job, patch)
        jobs.append(job)
    template = {**runtime["spec"]["template"], "spec": {**jobset, "replicatedJobs": jobs}}
    return {**runtime, "spec": {**runtime["spec"], "template": template}}


def _patches(trainjob: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each job of each patch, with its name."""
    for patch in trainjob["spec"].get("runtimePatches", ()):
        jobs = patch.get("trainingRuntimeSpec", {}).get("template", {}).get("spec", {}).get("replicatedJobs", ())
        yield from ((str(job["name"]), job) for job in jobs)


def _merged(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(base)
    for field, value in patch.items():
        if isinstance(value, dict):
            found[field] = _merged(found.get(field) or {}, value)
        elif field in _KEYS and isinstance(value, list):
            found[field] = _merged_list(field, found.get(field) or [], value)
        else:
            found[field] = value
    return found


def _merged_list(field: str, base: list[Any], patch: list[Any]) -> list[Any]:
    key = _KEYS[field]
    changes = {item[key]: item for item in patch}
    known = [item[key] for item in base]
    found = [_merged(item, changes.get(item[key], {})) for item in base]
    return found + [item for item in patch if field in _GROWING and item[key] not in known]
