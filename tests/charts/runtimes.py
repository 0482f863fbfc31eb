"""What lies inside a runtime: its jobs, pods, containers and claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Object = dict[str, Any]


KINDS = ("ClusterTrainingRuntime", "TrainingRuntime")


def runtimes(objects: Iterable[Object]) -> list[Object]:
    """Return the runtimes among rendered objects, of either kind."""
    return [item for item in objects if item["kind"] in KINDS]


def jobs(runtime: Object) -> Iterator[Object]:
    """Yield a Job for each job template of a runtime, as JobSet would make it."""
    for replicated in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
        yield {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": replicated["name"], **replicated["template"].get("metadata", {})},
            "spec": replicated["template"]["spec"],
        }


def claims(runtime: Object) -> Iterator[Object]:
    """Yield a PersistentVolumeClaim for each claim template of a runtime, as JobSet would make it."""
    for policy in runtime["spec"]["template"]["spec"].get("volumeClaimPolicies", []):
        for claim in policy["templates"]:
            yield {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim}


def pods(runtimes: Iterable[Object]) -> list[Object]:
    """Return the spec of every pod template."""
    return [job["spec"]["template"]["spec"] for runtime in runtimes for job in jobs(runtime)]


def containers(runtimes: Iterable[Object]) -> list[Object]:
    """Return every container of every pod template, those that run first included."""
    return [container for pod in pods(runtimes) for container in [*pod.get("initContainers", []), *pod["containers"]]]
