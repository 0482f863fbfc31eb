"""Pods' networks under a NetworkPolicy that holds, without pods: network namespaces, an API server and the agent.

The API server is told of pods with the addresses of the namespaces, and the Kubernetes project's own agent
(kube-network-policies) decides about each new connection. The kernel hands those over by iptables' NFQUEUE; the agent
also asks for them by nftables' `queue`, which not every kernel has.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from charts.helm import ROOT, Manifest
from cluster.artifacts import KUBERNETES, build

NODE = "10.99.0.1"
QUEUE = "98"
ASK = "import sys, urllib.request as u; print(u.build_opener(u.ProxyHandler({})).open(sys.argv[1], timeout=3).status)"


def agent(kubeconfig: str, node: str) -> list[str]:
    """Return the command that decides about a node's new connections; it is built if need be."""
    built = subprocess.run([ROOT / "tools/build", "network-policies"], check=True, stdout=subprocess.PIPE, text=True)
    return [
        f"{built.stdout.strip()}/standard", f"--kubeconfig={kubeconfig}", f"--hostname-override={node}",
        "--disable-nri", f"--nfqueue-id={QUEUE}", "--metrics-bind-address=127.0.0.1:9080", "--fail-open=false",
    ]  # fmt: skip


def queue_rules(address: str) -> list[list[str]]:
    """Return what hands new connections from and to a pod to the agent: iptables' chain and rule, in table mangle."""
    new = ["--match", "conntrack", "--ctstate", "NEW", "--jump", "NFQUEUE", "--queue-num", QUEUE]
    return [["FORWARD", which, address, *new] for which in ("--source", "--destination")]


class Network:
    """One node's network with pods in it.

    Args:
        folder: an empty folder for what the API server keeps and what all of them say.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.addresses: dict[str, str] = {}
        self._programs = build([KUBERNETES])[KUBERNETES]
        self._name = f"policed-{secrets.token_hex(3)}"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the node's network and the API server."""
        self._ip("netns", "add", self._name)
        self._inside(["ip", "link", "set", "lo", "up"])
        self._inside(["ip", "link", "add", "cni0", "type", "bridge"])
        self._inside(["ip", "addr", "add", f"{NODE}/24", "dev", "cni0"])
        self._inside(["ip", "link", "set", "cni0", "up"])
        self._inside(["sysctl", "-qw", "net.ipv4.ip_forward=1", "net.bridge.bridge-nf-call-iptables=1"])
        key = self.folder / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        token = secrets.token_hex(16)
        (self.folder / "tokens.csv").write_text(f'{token},admin,1,"system:masters"\n')
        cluster = {"server": "https://127.0.0.1:6443", "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "admin"}}],
            "current-context": "here",
        }
        (self.folder / "kubeconfig").write_text(json.dumps(config))
        etcd = "http://127.0.0.1:2379"
        self._run(
            "etcd", f"--data-dir={self.folder}/etcd", "--unsafe-no-fsync", f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}", "--listen-peer-urls=http://127.0.0.1:2380",
        )  # fmt: skip
        self._run(
            "kube-apiserver", f"--etcd-servers={etcd}", f"--cert-dir={self.folder}/certs", "--authorization-mode=RBAC",
            f"--token-auth-file={self.folder}/tokens.csv", "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.96.0.0/24", "--disable-admission-plugins=ServiceAccount",
            "--bind-address=127.0.0.1", f"--advertise-address={NODE}",
        )  # fmt: skip
        deadline = time.monotonic() + 180
        while self._inside([*self._kubectl, "get", "--raw", "/readyz"], check=False).returncode != 0:
            assert time.monotonic() < deadline, (self.folder / "kube-apiserver.log").read_text()[-3000:]
            time.sleep(1)

    def namespace(self, name: str) -> None:
        """Create a namespace."""
        self._inside([*self._kubectl, "create", "namespace", name])

    def apply(self, manifest: Manifest, namespace: str) -> None:
        """Apply an object."""
        self._inside([*self._kubectl, "apply", "-n", namespace, "-f", "-"], stdin=json.dumps(manifest))

    def pod(
        self, namespace: str, name: str, labels: Mapping[str, str], spec: Mapping[str, Any], serve: Sequence[int]
    ) -> None:
        """Make a pod's network, tell the API server of the pod, and answer HTTP requests at some of its ports."""
        address = f"10.99.0.{len(self.addresses) + 2}"
        inside = f"{self._name}-{name}"
        self._ip("netns", "add", inside)
        self.addresses[name] = address
        self._inside(["ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", inside])
        self._inside(["ip", "link", "set", name, "master", "cni0", "up"])
        for command in (
            ["ip", "link", "set", "lo", "up"],
            ["ip", "addr", "add", f"{address}/24", "dev", "eth0"],
            ["ip", "link", "set", "eth0", "up"],
        ):
            subprocess.run([*_enter(inside), *command], check=True)
        metadata = {"name": name, "labels": dict(labels)}
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": dict(spec)}, namespace)
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "hostIP": NODE}
        patch = json.dumps({"status": {**status, "hostIPs": [{"ip": NODE}]}})
        self._inside([*self._kubectl, "patch", "pod", name, "-n", namespace, "--subresource=status", "-p", patch])
        for port in serve:
            self._start([*_enter(inside), "python3", "-m", "http.server", str(port)], f"{name}-{port}")

    def enforce(self, pod: str) -> None:
        """Let policies hold for a pod from now on."""
        for rule in queue_rules(self.addresses[pod]):
            self._inside(["iptables", "--wait", "--table", "mangle", "--append", *rule])
        self._start([*_enter(self._name), *agent(f"{self.folder}/kubeconfig", "node")], "agent")

    def reaches(self, pod: str, other: str, port: int) -> bool:
        """Return whether a pod gets an answer from another."""
        url = f"http://{self.addresses[other]}:{port}/"
        done = subprocess.run(
            [*_enter(f"{self._name}-{pod}"), "python3", "-c", ASK, url], check=False, capture_output=True, text=True
        )
        assert done.stdout.strip() == "200" or "timed out" in done.stderr or "refused" in done.stderr, done.stderr
        return done.stdout.strip() == "200"

    def stop(self) -> None:
        """End everything."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(120)
        for name in [self._name, *(f"{self._name}-{pod}" for pod in self.addresses)]:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

    @property
    def _kubectl(self) -> list[str]:
        return [str(self._programs / "kubectl"), f"--kubeconfig={self.folder}/kubeconfig"]

    def _run(self, program: str, *arguments: str) -> None:
        self._start([*_enter(self._name), str(self._programs / program), *arguments], program)

    def _start(self, command: Sequence[str], name: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder))

    def _inside(
        self, command: Sequence[str], *, check: bool = True, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*_enter(self._name), *command], check=check, input=stdin, capture_output=True, text=True)

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)


def _enter(name: str) -> list[str]:
    return ["nsenter", f"--net=/run/netns/{name}", "--"]
