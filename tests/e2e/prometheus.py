"""A real Prometheus on this machine that finds pods by a PodMonitor, and what hands metrics to the API server.

They are processes where the cluster's clients run, so that no image of theirs is needed.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from charts.helm import ROOT
from charts.prometheus import Prometheus
from cluster import Cluster, artifacts
from cluster.artifacts import METRICS_SERVER, PROMETHEUS_ADAPTER
from e2e.kube import Kube, condition
from stoker.cluster.processes import free_ports

GET = "import sys, urllib.request as r; sys.stdout.write(r.urlopen(sys.argv[1], timeout=30).read().decode())"
CUSTOM_METRICS = ("custom.metrics.k8s.io", "v1beta2")
RESOURCE_METRICS = ("metrics.k8s.io", "v1beta1")


@contextmanager
def prometheus(
    cluster: Cluster, kube: Kube, monitor: Mapping[str, Any], folder: Path, rules: Mapping[str, Any] | None = None
) -> Iterator[tuple[Prometheus, str]]:
    """Run Prometheus with what the operator makes of these objects; yields it with its address.

    Args:
        cluster: the cluster.
        kube: the namespace of the pods.
        monitor: the PodMonitor.
        folder: an empty one for its files.
        rules: the spec of a PrometheusRule.
    """
    (port,) = free_ports(1)
    (folder / "rules.json").write_text(json.dumps(rules or {}))
    (folder / "prometheus.yml").write_text(json.dumps(configuration(cluster, kube.namespace, monitor)))
    address = f"http://127.0.0.1:{port}"
    built = subprocess.run([ROOT / "tools/build", "prometheus"], check=True, stdout=subprocess.PIPE, text=True)
    words = [
        f"{built.stdout.strip()}/prometheus", f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip

    def get(path: str) -> tuple[int, Any]:
        done = cluster.run([sys.executable, "-c", GET, f"{address}{path}"], capture_output=True)
        return 200, json.loads(done.stdout)

    def ready() -> bool:
        asked = [sys.executable, "-c", GET, f"{address}/-/ready"]
        return cluster.run(asked, check=False, capture_output=True).returncode == 0

    with _process(cluster, words, folder / "prometheus.log"):
        kube.until("Prometheus to be ready", ready, 300)
        yield Prometheus(get), address


def configuration(cluster: Cluster, namespace: str, monitor: Mapping[str, Any]) -> dict[str, Any]:
    """Return Prometheus' configuration for a PodMonitor; a pod is reached through the API server."""
    told = yaml.safe_load(Path(cluster.env["KUBECONFIG"]).read_text())
    server, user = told["clusters"][0]["cluster"], told["users"][0]["user"]
    return {
        # A busy machine may need more than two seconds for an answer.
        "global": {"scrape_interval": "5s", "evaluation_interval": "2s"},
        "rule_files": ["rules.json"],
        "scrape_configs": [
            {
                "job_name": f"pods-{number}",
                "scheme": "https",
                "tls_config": {
                    **_inline(server, "certificate-authority", "ca"),
                    **_inline(user, "client-certificate", "cert"),
                    **_inline(user, "client-key", "key"),
                },
                "kubernetes_sd_configs": [
                    {"role": "pod", "kubeconfig_file": cluster.env["KUBECONFIG"], "namespaces": {"names": [namespace]}}
                ],
                "relabel_configs": [
                    *_kept(monitor["spec"]["selector"]),
                    *_found(endpoint, urlsplit(server["server"]).netloc),
                ],
            }
            for number, endpoint in enumerate(monitor["spec"]["podMetricsEndpoints"])
        ],
    }


def _kept(selector: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the relabelings that keep the pods of a selector."""
    wanted = {name: [value] for name, value in selector.get("matchLabels", {}).items()}
    wanted |= {expression["key"]: expression["values"] for expression in selector.get("matchExpressions", ())}
    return [
        {
            "source_labels": [f"__meta_kubernetes_pod_label_{re.sub(r'[^A-Za-z0-9]', '_', name)}"],
            "regex": "|".join(values),
            "action": "keep",
        }
        for name, values in wanted.items()
    ]


def _found(endpoint: Mapping[str, Any], api_server: str) -> list[dict[str, Any]]:
    """Return the relabelings of one endpoint of the pods."""
    return [
        {"source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": endpoint["port"], "action": "keep"},
        {"source_labels": ["__meta_kubernetes_pod_phase"], "regex": "Pending|Succeeded|Failed", "action": "drop"},
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
        *(
            {re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", key): value for key, value in rule.items()}
            for rule in endpoint["relabelings"]
        ),
        {
            "source_labels": ["namespace", "pod", "__meta_kubernetes_pod_container_port_number"],
            "separator": "/",
            "regex": "(.*)/(.*)/(.*)",
            "target_label": "__metrics_path__",
            "replacement": f"/api/v1/namespaces/$1/pods/$2:$3/proxy{endpoint['path']}",
        },
        {"target_label": "__address__", "replacement": api_server},
    ]


@contextmanager
def adapter(cluster: Cluster, kube: Kube, address: str, rules: Mapping[str, Any], folder: Path) -> Iterator[None]:
    """Serve series of a Prometheus as metrics of pods, by the adapter that most clusters have.

    Args:
        cluster: the cluster.
        kube: the namespace that gets the adapter's Service.
        address: of Prometheus.
        rules: the adapter's configuration.
        folder: an empty one for its files.
    """
    (port,) = free_ports(1)
    kubeconfig = cluster.env["KUBECONFIG"]
    (folder / "adapter.yaml").write_text(yaml.safe_dump(dict(rules)))
    words = [
        str(artifacts.build([PROMETHEUS_ADAPTER])[PROMETHEUS_ADAPTER] / PROMETHEUS_ADAPTER.name),
        f"--prometheus-url={address}", f"--config={folder}/adapter.yaml",
        f"--lister-kubeconfig={kubeconfig}", f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}", f"--secure-port={port}", f"--cert-dir={folder}/certificates",
        "--metrics-relist-interval=5s", "--metrics-max-age=30s",
    ]  # fmt: skip
    with _process(cluster, words, folder / "adapter.log"), _extending(kube, *CUSTOM_METRICS, port):
        yield


@contextmanager
def metrics_server(cluster: Cluster, kube: Kube, folder: Path) -> Iterator[None]:
    """Serve what pods and nodes use, as `kubectl top` and autoscalers ask for it.

    Args:
        cluster: the cluster.
        kube: the namespace that gets the server's Service.
        folder: an empty one for its files.
    """
    (port,) = free_ports(1)
    kubeconfig = cluster.env["KUBECONFIG"]
    words = [
        str(artifacts.build([METRICS_SERVER])[METRICS_SERVER] / METRICS_SERVER.name),
        f"--kubeconfig={kubeconfig}", f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}", f"--secure-port={port}", f"--cert-dir={folder}/certificates",
        "--kubelet-insecure-tls", "--kubelet-preferred-address-types=InternalIP", "--metric-resolution=15s",
    ]  # fmt: skip
    with _process(cluster, words, folder / "metrics-server.log"), _extending(kube, *RESOURCE_METRICS, port):
        yield


@contextmanager
def _extending(kube: Kube, group: str, version: str, port: int) -> Iterator[None]:
    """Have the API server hand the requests of an API on to a port where it runs itself."""
    made = _extension(kube, group, version, port)
    kube.apply(*made)
    try:
        name = f"{version}.{group}"
        kube.until(f"the API {group}", lambda: condition(kube.get("apiservice", name) or {}, "Available"), 300)
        yield
    finally:
        for one in reversed(made):
            kube.delete(one["kind"], one["metadata"]["name"], wait=False)


def _extension(kube: Kube, group: str, version: str, port: int) -> list[dict[str, Any]]:
    (slices,) = json.loads(
        kube.kubectl(
            "get", "endpointslices", "--namespace=default", "--selector=kubernetes.io/service-name=kubernetes",
            "--output=json",
        ).stdout
    )["items"]  # fmt: skip
    name = f"stoker-tests-{group.partition('.')[0]}"
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": kube.namespace},
            "spec": {"ports": [{"port": 443, "targetPort": port}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": name,
                "namespace": kube.namespace,
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": slices["endpoints"][0]["addresses"]}],
            "ports": [{"name": "", "port": port}],
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"{version}.{group}"},
            "spec": {
                "group": group,
                "version": version,
                "service": {"name": name, "namespace": kube.namespace},
                "insecureSkipTLSVerify": True,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
            },
        },
    ]


@contextmanager
def _process(cluster: Cluster, words: Sequence[str], log: Path) -> Iterator[None]:
    with log.open("wb") as written:
        process = subprocess.Popen(cluster.provider.wrap(words), stdout=subprocess.DEVNULL, stderr=written)
        try:
            yield
        except AssertionError as error:
            error.add_note(log.read_text(errors="replace")[-2000:])
            raise
        finally:
            process.terminate()
            try:
                process.wait(120)
            finally:
                process.kill()


def _inline(told: Mapping[str, str], name: str, key: str) -> dict[str, str]:
    if f"{name}-data" in told:
        return {key: base64.b64decode(told[f"{name}-data"]).decode()}
    return {f"{key}_file": told[name]}
