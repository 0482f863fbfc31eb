"""Kueue on the cluster, and queues for the tests' namespaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from cluster import Cluster, optional
from e2e.kube import Kube

VERSION = "kueue.x-k8s.io/v1beta2"
QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
#: Priorities of runs, which Kueue alone knows: pods keep their own.
PRIORITIES = {"whenever": 10, "important": 1000}


@pytest.fixture(scope="package")
def kueue(cluster: Cluster) -> Iterator[None]:
    """Kueue's controller in the cluster; one that was there before stays."""
    was_there = optional.has(cluster, "kueue")
    try:
        if not was_there:
            optional.add(cluster, "kueue")
        yield
    finally:
        # Half of it would refuse the TrainJobs of later tests.
        if not was_there:
            optional.remove(cluster, "kueue")


@contextmanager
def queue(
    kube: Kube,
    name: str,
    quota: Mapping[str, str],
    flavor: Mapping[str, Any] | None = None,
    *,
    preempts: bool = True,
) -> Iterator[str]:
    """Have a queue in a namespace, with a quota of its own and both priorities; yields its name.

    Args:
        kube: the namespace.
        name: of the queue, of its quota and of its flavor.
        quota: resource → how much of it there is; everything that a pod asks for must be among them.
        flavor: the spec of the flavor: labels of nodes, and what their taints ask for.
        preempts: whether runs make way for more important ones.
    """
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quota.items()]
    groups = [{"coveredResources": [*quota], "flavors": [{"name": name, "resources": resources}]}]
    made = [
        _object("ResourceFlavor", name, flavor or {}),
        _object(
            "ClusterQueue",
            name,
            {
                "namespaceSelector": {},
                "preemption": {"withinClusterQueue": "LowerPriority" if preempts else "Never"},
                "resourceGroups": groups,
            },
        ),
        _object("LocalQueue", name, {"clusterQueue": name}),
        *(
            {"apiVersion": VERSION, "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value}
            for name, value in PRIORITIES.items()
        ),
    ]
    made[2]["metadata"]["namespace"] = kube.namespace
    # One of an earlier test goes when its last run has gone.
    for kind in ("clusterqueues", "resourceflavors"):
        kube.until(f"the old {kind} to go", partial(_is_gone, kube, f"{kind}.kueue.x-k8s.io", name), 180)
    kube.apply(*made)
    try:
        yield name
    finally:
        for one in reversed(made):
            kube.delete(f"{one['kind']}.kueue.x-k8s.io", one["metadata"]["name"], wait=False)


def _is_gone(kube: Kube, kind: str, name: str) -> bool:
    return kube.get(kind, name) is None


def queued(trainjob: Mapping[str, Any], name: str | None, priority: str | None = None) -> dict[str, Any]:
    """Return a TrainJob in a queue; None leaves it out of all."""
    labels = {QUEUE: name, **({PRIORITY: priority} if priority else {})} if name else {}
    return {**trainjob, "metadata": {**trainjob["metadata"], "labels": labels}}


def workload_of(kube: Kube, trainjob: str) -> dict[str, Any]:
    """Return what Kueue keeps of a TrainJob; an empty object while it keeps nothing."""
    for found in kube.items("workloads.kueue.x-k8s.io"):
        if any(owner["name"] == trainjob for owner in found["metadata"].get("ownerReferences", ())):
            return found
    return {}


def _object(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": VERSION, "kind": kind, "metadata": {"name": name}, "spec": dict(spec)}
