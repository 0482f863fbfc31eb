"""Start the cluster and pull large images on its nodes, ahead of the tests: ``python -m e2e.ahead``."""

from __future__ import annotations

import sys
from typing import Any

from cluster import Cluster, ClusterError, connect
from cluster.provider import choose
from cluster.testing import starting
from e2e.kube import Kube, restricted_namespace
from e2e.registry import push_image
from e2e.trainjobs import reader_pod

NAMESPACE = "stoker-ahead"


def make_ready() -> None:
    """Start the cluster, then build, push and pull the images.

    Tests may begin when the trainers' are there: the server's is large, and few of them need it.

    Raises:
        ClusterError: the cluster cannot be started.
    """
    with starting():
        provider = choose()
        provider.up()
        cluster = connect(provider.name)
        _pull(cluster, "trl", "torchtune")
    _pull(cluster, "vllm")


def _pull(cluster: Cluster, *names: str) -> None:
    with restricted_namespace(cluster, f"{NAMESPACE}-{names[0]}") as kube:
        for name in names:
            image = push_image(cluster, name, "--accelerator", "cpu").reference
            kube.create(*(_pod(f"{name}-{node}", image, node) for node in _nodes(kube)))
        ended = "--for=jsonpath={.status.phase}=Succeeded"
        kube.kubectl("wait", "pods", "--all", ended, "--timeout=600s")


def _nodes(kube: Kube) -> list[str]:
    return [node["metadata"]["name"] for node in kube.items("nodes") if not node["spec"].get("taints")]


def _pod(name: str, image: str, node: str) -> dict[str, Any]:
    pod = reader_pod(name, image, ["python", "--version"], [])
    pod["spec"]["nodeName"] = node
    return pod


if __name__ == "__main__":
    try:
        make_ready()
    except ClusterError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
