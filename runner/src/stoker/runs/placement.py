"""Whether a cluster has nodes that a runtime's pods may go to: labels and taints. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_KEEPS_AWAY = ("NoSchedule", "NoExecute")

Object = Mapping[str, Any]


def homeless(runtime: Object, nodes: Sequence[Object], cluster: str = "") -> Iterator[str]:
    """Yield why pods of a runtime would wait for a node, a line for each of its jobs.

    Args:
        runtime: a (Cluster)TrainingRuntime.
        nodes: the cluster's nodes.
        cluster: what kubectl needs to find the cluster, such as ` --context prod`; empty for the current one.
    """
    for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
        why = _why(job["template"]["spec"]["template"]["spec"], nodes, cluster)
        if why:
            yield f"runtime {runtime['metadata']['name']}, job {job['name']}: {why}"


def _why(pod: Object, nodes: Sequence[Object], cluster: str) -> str:
    wanted: Mapping[str, str] = pod.get("nodeSelector") or {}
    for key, value in sorted(wanted.items()):
        if not any(_labels(node).get(key) == value for node in nodes):
            return f"no node has the label {key}={value}: kubectl label node NODE {key}={value}{cluster}"
    labelled = [node for node in nodes if all(_labels(node).get(key) == value for key, value in wanted.items())]
    if not labelled:
        all_of = ", ".join(f"{key}={value}" for key, value in sorted(wanted.items()))
        return f"no node has all of the labels {all_of}: give them to one node"
    tolerations = pod.get("tolerations") or ()
    taints = [_refused(node, tolerations) for node in labelled]
    if all(taints):
        return (
            f"each node with the right labels has a taint that the pods do not tolerate ({taints[0]}): add it to "
            "tolerations in the values of training-runtimes, or remove the taint"
        )
    return ""


def _labels(node: Object) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def _refused(node: Object, tolerations: Sequence[Object]) -> str:
    """Return the first taint of a node that keeps pods away; empty if none does."""
    for taint in (node.get("spec") or {}).get("taints") or ():
        if taint["effect"] in _KEEPS_AWAY and not any(_tolerates(one, taint) for one in tolerations):
            return f"{taint['key']}={taint.get('value', '')}:{taint['effect']}"
    return ""


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    key = toleration.get("key")
    if toleration.get("operator") == "Exists":
        return key in (None, "", taint["key"])
    return bool(key == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or ""))
