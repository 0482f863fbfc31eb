"""A container's resources, as Trainer merges them and as Kubernetes accepts them. Pure.

Kubernetes 1.31 to 1.36 (pkg/apis/core/validation: ValidateResourceRequirements). What it refuses there shows only as an
event of the JobSet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stoker.cluster.pods import merged_resources, quantity
from stoker.contract.exits import RunError


def resource_problems(
    declared: Mapping[str, Any],
    asked: Mapping[str, Any],
    pods: str = "the pods",
    fix: str = "set both in resourcesPerNode",
) -> Iterator[str]:
    """Yield why no pod can start with these resources.

    Args:
        declared: resources of the runtime's container.
        asked: resourcesPerNode of the TrainJob.
        pods: what messages call its pods.
        fix: what to do, for messages.
    """
    none = f"so none can start: {fix}"
    try:
        merged = merged_resources(declared, asked)
        limits, requests = merged["limits"], merged["requests"]
        for name, limit in limits.items():
            if _is_extended(name) and not quantity(limit).is_integer():
                yield f"limits of {pods} have {limit} of {name}, which cannot be divided: write a whole number"
        for name, request in requests.items():
            limit = limits.get(name)
            if limit is None and _is_extended(name):
                yield f"{pods} request {name}, but have no limit of it, {none}"
            elif limit is not None and _is_extended(name) and quantity(request) != quantity(limit):
                yield f"{pods} request {request} of {name}, but their limit is {limit}, {none}"
            elif limit is not None and quantity(request) > quantity(limit):
                yield f"{pods} request {name} {request}, which is more than their limit {limit}, {none}"
    except (RunError, AttributeError, TypeError):
        return  # the schema refuses it


def _is_extended(name: str) -> bool:
    """Return whether Kubernetes gives a resource in whole pieces, none of which two pods can share."""
    is_native = "/" not in name or "kubernetes.io/" in name
    return not is_native or name.startswith("hugepages-")
