"""A node on which nothing runs: a Node object without a kubelet, where only the placement of pods counts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cluster import Cluster
from e2e.kube import Kube, restricted_namespace

NODE, LABEL = "stoker-tests-packed", {"stoker.dev/tests": "packed"}
#: What sends a pod there.
POD: Mapping[str, Any] = {"nodeSelector": LABEL, "tolerations": [{"operator": "Exists"}]}


@contextmanager
def bare_namespace(cluster: Cluster, name: str, claim: str) -> Iterator[Kube]:
    """Make a namespace with a claim that is bound, for pods that never start."""
    volume = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
        "hostPath": {"path": "/nowhere"},
        "storageClassName": "",
        "claimRef": {"name": claim, "namespace": name},
    }
    spec = {
        "storageClassName": "",
        "volumeName": claim,
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    with restricted_namespace(cluster, name) as kube:
        kube.delete("pv", claim)
        kube.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": claim}, "spec": volume})
        kube.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": claim}, "spec": spec})
        yield kube
        kube.delete("pvc", claim, wait=False)
        kube.delete("pv", claim, wait=False)


@contextmanager
def bare_node(kube: Kube, memory: str) -> Iterator[None]:
    """Have a node of so much memory that no kubelet looks after, and a namespace without runs at the end."""
    spec = {"taints": [{"key": "stoker.dev/tests", "value": "packed", "effect": "NoSchedule"}]}
    # Released images are for this architecture, and pods ask for it.
    labels = {**LABEL, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": labels}, "spec": spec}
    kube.create(node)
    room = {"cpu": "8", "memory": memory, "pods": "50"}
    kube.kubectl(
        "patch", "node", NODE, "--subresource=status", "--type=merge",
        "--patch", json.dumps({"status": {"capacity": room, "allocatable": room}}),
    )  # fmt: skip
    yield
    kube.kubectl("delete", "trainjobs", "--all")
    # No kubelet tells of their end.
    kube.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
    kube.delete("node", NODE)


def end(kube: Kube, run: str) -> None:
    """End a run whose pods no kubelet ends."""
    kube.delete("trainjob", run)
    selector = f"jobset.sigs.k8s.io/jobset-name={run}"

    def gone() -> bool:
        # A job may make another pod before it goes itself.
        kube.kubectl("delete", "pods", "--selector", selector, "--force")
        return not kube.items("jobs", selector) and not kube.items("pods", selector)

    kube.until(f"jobs and pods of {run} to go", gone, 180)


def placed(kube: Kube) -> dict[str, tuple[int, int]]:
    """Return of each run how many of its pods have a node, and how many there are."""
    found: dict[str, tuple[int, int]] = {}
    for pod in kube.items("pods", "jobset.sigs.k8s.io/jobset-name"):
        if pod["metadata"].get("deletionTimestamp"):
            continue
        name = pod["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"]
        has, all_of_it = found.get(name, (0, 0))
        node = pod["spec"].get("nodeName")
        assert node in (None, NODE)
        found[name] = (has + bool(node), all_of_it + 1)
    return found


def stays(kube: Kube, wanted: dict[str, tuple[int, int]], seconds: float) -> None:
    """Fail if the placement becomes another."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert placed(kube) == wanted
        time.sleep(1)
