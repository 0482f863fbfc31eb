"""A release of the serving chart, and a pod beside it that asks, publishes and keeps it busy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.kube import Kube
from e2e.pods import CONTAINER_SECURITY, POD_SECURITY, claim_mounts, claim_volumes

CLIENT = "client"
KEY = "a-key-of-the-tests-0123456789abcdef"
PROGRAM = Path(__file__).with_name("client.py")


class Client:
    """A pod that asks servers.

    Args:
        kube: its namespace.
    """

    def __init__(self, kube: Kube) -> None:
        self.kube = kube

    def ask(self, *requests: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return what a server answers to each request, `{url, body, key}`; see client.py."""
        done = self.kube.kubectl(
            "exec", "--stdin", CLIENT, "--", "python", "/client/client.py", "ask", stdin=json.dumps(requests)
        )
        answers: list[dict[str, Any]] = json.loads(done.stdout)
        return answers

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command in the pod and return what it printed."""
        done = self.kube.kubectl("exec", CLIENT, "--", *command, check=check)
        return done.stdout + ("" if check else done.stderr)

    def publish(self, run: str, folder: str, name: str, urls: Sequence[str]) -> dict[str, Any]:
        """Publish a version and return its name and the seconds until each replica answered with it."""
        printed: dict[str, Any] = json.loads(
            self.run("python", "/client/client.py", "publish", run, folder, name, *urls)
        )
        return printed

    @contextmanager
    def busy(self, url: str, *models: str, pause: float = 1.0, askers: int = 4) -> Iterator[dict[str, Any]]:
        """Keep a server busy meanwhile; what is given is filled at the end with what came of all requests.

        Args:
            url: the server.
            models: whom to ask.
            pause: seconds that each asker waits between two requests. A second leaves a small machine time to start
                another replica meanwhile.
            askers: how many ask at the same time.
        """
        words = " ".join([str(pause), str(askers), url, *models])
        start = f"rm -f /tmp/stop /tmp/load.json; python /client/client.py load {words} > /tmp/load.part 2>&1"
        self.run("sh", "-c", f"({start}; mv /tmp/load.part /tmp/load.json) > /dev/null 2>&1 &")
        load: dict[str, Any] = {}
        try:
            yield load
        finally:
            self.run("touch", "/tmp/stop")
            read = "cat /tmp/load.json 2>/dev/null || true"
            load |= json.loads(self.kube.until("the load's end", lambda: self.run("sh", "-c", read), 300))


class Server:
    """An installed release.

    Args:
        kube: its namespace.
        name: the release.
        client: who asks it.
    """

    def __init__(self, kube: Kube, name: str, client: Client) -> None:
        self.kube, self.name, self.client = kube, name, client

    @property
    def url(self) -> str:
        """The Service."""
        return f"http://{self.name}"

    @property
    def selector(self) -> str:
        """What finds its objects."""
        return f"app.kubernetes.io/instance={self.name}"

    def pods(self) -> list[dict[str, Any]]:
        """Return its pods that are not about to end, oldest first."""
        pods = self.kube.items("pods", self.selector)
        pods = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        return sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def ready(self) -> list[dict[str, Any]]:
        """Return its pods that requests reach."""
        return [pod for pod in self.pods() if _is_ready(pod)]

    def addresses(self, port: int = 8080) -> list[str]:
        """Return the address of each replica that requests reach."""
        return [f"http://{pod['status']['podIP']}:{port}" for pod in self.ready()]

    def wait_ready(self, replicas: int, seconds: float = 300) -> None:
        """Wait until that many replicas, and no others, are there and ready."""

        def enough() -> bool:
            return len(self.pods()) == len(self.ready()) == replicas

        self.kube.until(f"{replicas} replicas of {self.name}", enough, seconds)

    def adapters(self) -> list[dict[str, Any]]:
        """Return what each replica says of its adapters."""
        answers = self.client.ask(*({"url": f"{address}/adapters"} for address in self.addresses(8081)))
        return [answer["body"] for answer in answers]


def client_objects(image: str, claims: Sequence[str]) -> list[dict[str, Any]]:
    """Return the pod, its program and the secret with the key. The claims are at /claims/<name>."""
    pod = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": POD_SECURITY,
        "containers": [
            {
                "name": "client",
                "image": image,
                "command": ["sleep", "infinity"],
                "env": [
                    {"name": "API_KEY", "valueFrom": {"secretKeyRef": {"name": "model-key", "key": "api-key"}}},
                ],
                "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
                "securityContext": CONTAINER_SECURITY,
                "volumeMounts": [
                    *claim_mounts(claims),
                    {"name": "program", "mountPath": "/client"},
                    {"name": "tmp", "mountPath": "/tmp"},
                ],
            }
        ],
        "volumes": [
            *claim_volumes(claims),
            {"name": "program", "configMap": {"name": "client"}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "model-key"},
            "stringData": {"api-key": KEY},
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "client"},
            "data": {PROGRAM.name: PROGRAM.read_text()},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": CLIENT, "labels": {"role": CLIENT}},
            "spec": pod,
        },
    ]


def _is_ready(pod: Mapping[str, Any]) -> bool:
    return any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in pod["status"].get("conditions", ())
    )
