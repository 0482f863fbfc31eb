"""The serving chart's NetworkPolicy holds in a kernel: who is outside of it reaches nothing of a replica."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

from charts.helm import VLLM_SERVING, Manifest, render
from charts.policed_network import Network

pytestmark = [
    pytest.mark.full,  # needs Kubernetes' programs
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("iptables") or not shutil.which("nsenter"),
        reason="network namespaces and iptables need root and Linux",
    ),
]

PORTS = CLIENTS, ADAPTERS, PROBES, VLLM = 8080, 8081, 8082, 8000
ELSEWHERE = 9000
IDLE: dict[str, Any] = {"nodeName": "node", "containers": [{"name": "idle", "image": "idle"}]}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """A replica that answers at all its ports and at vLLM's own, others in its namespace, a stranger in another."""
    objects = {item["kind"]: item for item in render(VLLM_SERVING, [VLLM_SERVING / "ci/cpu-values.yaml"])}
    template = objects["Deployment"]["spec"]["template"]
    running = Network(tmp_path_factory.mktemp("network"))
    try:
        running.start()
        for namespace in ("models", "monitoring", "elsewhere"):
            running.namespace(namespace)
        labels = template["metadata"]["labels"]
        running.pod("models", "replica", labels, ports_of(template), PORTS)
        running.pod("models", "client", {"app": "chat"}, IDLE, (ELSEWHERE,))
        running.pod("monitoring", "prometheus", {"app": "prometheus"}, IDLE, ())
        running.pod("elsewhere", "stranger", {"app": "chat"}, IDLE, ())
        running.apply(objects["NetworkPolicy"], "models")
        deadline = time.monotonic() + 120
        inside = [(who, "replica", port) for who in ("client", "prometheus", "stranger") for port in PORTS]
        for way in (*inside, ("replica", "client", ELSEWHERE)):
            while not running.reaches(*way):
                assert time.monotonic() < deadline, f"{way}: nothing but the policy is to keep anybody out"
        running.enforce("replica")
        deadline = time.monotonic() + 120
        while running.reaches("stranger", "replica", CLIENTS) or not running.reaches("client", "replica", CLIENTS):
            assert time.monotonic() < deadline, (running.folder / "agent.log").read_text()[-3000:]
        yield running
    finally:
        running.stop()


def ports_of(template: Manifest) -> dict[str, Any]:
    """Return the spec of a pod with the names, kinds and ports of a template's containers, and nothing else."""
    kept = ("name", "image", "restartPolicy", "ports")
    spec = {
        kind: [{key: container[key] for key in kept if key in container} for container in template["spec"][kind]]
        for kind in ("initContainers", "containers")
    }
    return {"nodeName": "node", **spec}


def test_who_is_outside_reaches_nothing(network: Network) -> None:
    assert not any(network.reaches("stranger", "replica", port) for port in PORTS)


def test_the_releases_namespace_reaches_the_api_alone(network: Network) -> None:
    reached = {port for port in PORTS if network.reaches("client", "replica", port)}
    assert reached == {CLIENTS}


def test_prometheus_reaches_metrics_alone(network: Network) -> None:
    reached = {port for port in PORTS if network.reaches("prometheus", "replica", port)}
    assert reached == {ADAPTERS, PROBES}


def test_a_replica_reaches_nobody(network: Network) -> None:
    assert not network.reaches("replica", "client", ELSEWHERE)
