"""Why Kueue keeps a run waiting, in words: from the Workload that Kueue keeps beside the TrainJob."""

from __future__ import annotations

import re

from stoker.runs.client import namespace_options
from stoker.runs.run import Object, condition, part, rows

_PRIORITY = "kueue.x-k8s.io/priority-class"
# What Kueue says of pods that claim devices: shared ones, any, and those of a class that its configuration lacks.
_CLAIMS = re.compile(r"use of resource claims|uses DRA resources|DeviceClass \S+ is not mapped")


def held_by(
    workload: Object | None,
    others: tuple[Object, ...],
    queue: str,
    namespace: str,
    stopped: bool,
    *,
    cluster: str = "",
    options: str = "",
) -> tuple[str, str]:
    """Return why a run that has a queue does not run, and what to do.

    Args:
        workload: what Kueue keeps of the run; None if there is none, or the user may not see it.
        others: what it keeps of other runs in the queue. From 0.18 on Kueue explains only one of several equal runs
            that wait (its feature SchedulingEquivalenceHashing).
        queue: its queue.
        namespace: of both.
        stopped: False while its pods still end.
        cluster: what kubectl needs to find the cluster, such as ` --context prod`; empty for the current one.
        options: what stoker needs to find the namespace too, such as ` --namespace ml`.
    """
    there = namespace_options(cluster, namespace)
    if workload is None:
        fix = (
            f"kubectl get workloads{there} shows what it waits for: quota, or runs before it; "
            f"{_PRIORITY} on the TrainJob changes the order. If there is none for this run, Kueue is not "
            "installed, or trainer.kubeflow.org/trainjob is not among the frameworks of its configuration"
        )
        return f"it waits in queue {queue} until Kueue admits it", fix
    name = str(part(workload, "metadata").get("name"))
    if part(workload, "spec").get("active") is False:
        patch = """--type=merge --patch '{"spec": {"active": true}}'"""
        return (
            f"Kueue holds it in queue {queue}, because its workload is not active",
            f"kubectl patch workload {name}{there} {patch}",
        )
    if not stopped:
        return (
            f"Kueue stops it: {_evicted(workload) or f'queue {queue} has no room for it'}",
            "wait: its pods save a checkpoint, and it goes on from there when there is room",
        )
    told, evicted = _told(workload), _evicted(workload)
    cause = f"it waits in queue {queue}"
    cause += f": {told or evicted}" if told or evicted else f", behind {_explained(others)}"
    if told and evicted:
        cause += f". It was stopped before: {evicted}"
    return cause, _remedy(told, queue, name, there, cluster, options)


def _explained(others: tuple[Object, ...]) -> str:
    """Return the first of the runs that Kueue explains, with its words; they give no advice for another run."""
    for one in others:
        if told := _told(one):
            owners = rows(part(one, "metadata"), "ownerReferences")
            return f"{owners[0].get('name') if owners else 'another run'}: {told}"
    return "the runs before it"


def _told(workload: Object) -> str:
    """Return Kueue's own words; none while the last of them are why it was stopped."""
    for found in rows(part(workload, "status"), "conditions"):
        if found.get("type") == "QuotaReserved" and found.get("status") == "False":
            message = str(found.get("message") or "")
            return "" if message.startswith("Preempted ") else message
    checks = rows(part(workload, "status"), "admissionChecks")
    waits = [str(check.get("name")) for check in checks if check.get("state") != "Ready"]
    return f"the quota is there, and these checks are not passed yet: {', '.join(waits)}" if waits else ""


def _evicted(workload: Object) -> str:
    found = condition(workload, "Evicted")
    if found is None:
        return ""
    if found.get("reason") == "Preempted":
        return "a more important run has its place"
    return str(found.get("message") or found.get("reason") or "")


def _remedy(told: str, queue: str, name: str, there: str, cluster: str, options: str) -> str:
    if "checks are not passed" in told:
        return f"kubectl describe workload {name}{there} shows each check and what it waits for"
    if "LocalQueue" in told:
        return (
            f"kubectl get localqueues{there} lists the queues: name one in the label "
            f"kueue.x-k8s.io/queue-name, or have {queue} set up"
        )
    if told.startswith("ClusterQueue "):
        return f"kubectl describe clusterqueues{cluster} says what is wrong with the quota behind queue {queue}"
    if _CLAIMS.search(told):
        return (
            "Kueue does not count the devices that its pods claim: have its feature gates KueueDRAIntegration and "
            "KueueDRARejectWorkloadsWhenDRADisabled turned off (docs/guides/kueue.md), then submit the run again"
        )
    if "unavailable in ClusterQueue" in told:
        return "ask for no such resource, or have it added to coveredResources of the ClusterQueue"
    if "maximum capacity" in told:
        return (
            "it can never fit: ask for less in spec.trainer.resourcesPerNode or numNodes, or have the quota raised "
            f"(kubectl describe clusterqueues{cluster})"
        )
    return (
        f"wait until a run before it ends (`stoker runs{options}`), or give it another {_PRIORITY}; "
        f"kubectl describe workload {name}{there} tells more"
    )
