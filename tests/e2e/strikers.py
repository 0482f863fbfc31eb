"""Pods that see the processes of their node, to hit those of other pods; and evictions, as a drain does them."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from e2e.kube import Kube
from e2e.registry import Image

HIT = Path(__file__).with_name("hit.py")
_START_SECONDS = 8.0


class Striker:
    """A pod on a node that sees its processes.

    Args:
        kube: the namespace of the pod.
        node: the node.
        image: an image with the runner.
    """

    def __init__(self, kube: Kube, node: str, image: str) -> None:
        self.node = node
        self._kube = kube
        self._name = f"e2e-striker-{node}"
        self.delete()
        pod = {
            "restartPolicy": "Never",
            "hostPID": True,
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "striker",
                    "image": image,
                    "command": ["sleep", "infinity"],
                    "securityContext": {"privileged": True, "runAsUser": 0},
                }
            ],
        }
        kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": self._name}, "spec": pod})
        kube.kubectl("wait", "--for=condition=Ready", "--timeout=300s", f"pod/{self._name}")

    def run(self, script: Path, *words: str, told: Mapping[str, Callable[[], None]] | None = None) -> list[str]:
        """Run a Python script in the pod.

        Args:
            script: the script.
            words: its arguments.
            told: line that it prints → what is done then.

        Returns:
            the lines that it printed.
        """
        command = ["kubectl", "--namespace", self._kube.namespace, "exec", "--stdin", self._name, "--", "python", "-"]
        reading, writing = os.pipe()

        def execute() -> None:
            with os.fdopen(writing, "w") as said:
                self._kube.cluster.run(
                    [*command, *words], check=False, input=script.read_text(), stdout=said, stderr=said
                )

        lines = []
        with ThreadPoolExecutor(1) as pool, os.fdopen(reading) as said:
            ended = pool.submit(execute)
            for line in said:
                lines.append(line.rstrip("\n"))
                if told and lines[-1].strip() in told:
                    told[lines[-1].strip()]()
            ended.result()
        return lines

    def delete(self) -> None:
        """Delete the pod."""
        self._kube.delete("pod", self._name)


@pytest.fixture(scope="module")
def strikers(kube: Kube, image: Image) -> Iterator[list[Striker]]:
    """One for each node that takes pods."""
    system = Kube(kube.cluster, "kube-system")
    nodes = [node for node in kube.items("nodes") if not node["spec"].get("taints")]
    found = [Striker(system, node["metadata"]["name"], image.reference) for node in nodes]
    yield found
    for striker in found:
        striker.delete()


def hit(
    strikers: Sequence[Striker], pods: Sequence[Mapping[str, Any]], number: signal.Signals, word: str = ""
) -> datetime:
    """Send processes of pods a signal: at once, as the end of one ends others.

    Args:
        strikers: one for each node.
        pods: the pods.
        number: the signal.
        word: a word in the commands of the processes; all of them without one.

    Returns:
        when they were to get it.
    """
    hosts = {
        striker: [pod["spec"]["hostname"] for pod in pods if pod["spec"]["nodeName"] == striker.node]
        for striker in strikers
    }
    there = {striker: names for striker, names in hosts.items() if names}
    words = [word] if word else []
    # A Python starts on each node before: one node may be slower than another by seconds.
    moment = time.time() + _START_SECONDS * (len(there) > 1)
    with ThreadPoolExecutor(len(there)) as pool:
        said = [*pool.map(lambda one: one.run(HIT, number.name, ",".join(there[one]), str(moment), *words), there)]
    struck = {line.split()[2] for lines in said for line in lines if re.fullmatch(r"hit [1-9]\d* \S+", line)}
    assert struck == {pod["spec"]["hostname"] for pod in pods}, said
    return datetime.fromtimestamp(moment, UTC)


def evict(kube: Kube, pod: str) -> None:
    """Evict a pod as a drain does."""
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": kube.namespace},
    }
    path = f"/api/v1/namespaces/{kube.namespace}/pods/{pod}/eviction"
    kube.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
