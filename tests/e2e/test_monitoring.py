"""Runs as Prometheus sees them: found by the chart's PodMonitor, scraped through the API server, alerts evaluated."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from charts.helm import ROOT, TRAINING_RUNTIMES, render
from charts.prometheus import Prometheus
from cluster import Cluster
from e2e.kube import Kube
from e2e.trainjobs import LORA_SFT, Run, trainjob
from stoker.cluster.processes import free_ports

RELEASE = "monitored"
RUNTIME = "monitored-sft"
NAME = "seen"
NAMESPACE = "stoker-monitored"
SETTINGS = {"profile": "none", "accelerator": "cpu", "runtimes": {RUNTIME: {"base": "trl-distributed"}}}
GET = "import sys, urllib.request as r; sys.stdout.write(r.urlopen(sys.argv[1], timeout=30).read().decode())"

pytestmark = pytest.mark.full  # Prometheus takes minutes to build


@pytest.fixture
def runtime(helm: Callable[..., str], chart: list[str], catalogue_values: list[str], tmp_path: Path) -> Iterator[None]:
    """A runtime whose nodes show metrics. The cluster has no Prometheus Operator, so its objects are not installed."""
    values = {**SETTINGS, "monitoring": {"scrapedElsewhere": True}}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    helm(
        "upgrade", "--install", RELEASE, *chart, *catalogue_values, "--values", str(tmp_path / "values.yaml"),
        "--set", "runtimes.trl-distributed.enabled=false", "--namespace", NAMESPACE, "--create-namespace", "--wait",
    )  # fmt: skip
    yield
    helm("uninstall", RELEASE, "--namespace", NAMESPACE)


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    """What the chart makes for the Prometheus Operator and Grafana, by kind."""
    settings = [f"{name}={json.dumps(value)}" for name, value in SETTINGS.items()]
    made = render(TRAINING_RUNTIMES, [], [*settings, 'monitoring={"podMonitor":true,"rules":true,"dashboard":true}'])
    return {item["kind"]: item for item in made if item["kind"] in ("PodMonitor", "PrometheusRule", "ConfigMap")}


@pytest.fixture
def prometheus(cluster: Cluster, kube: Kube, objects: dict[str, Any], tmp_path: Path) -> Iterator[Prometheus]:
    """A Prometheus with what the operator makes of these objects; it reaches pods as kubectl does."""
    (port,) = free_ports(1)
    (tmp_path / "rules.json").write_text(json.dumps(objects["PrometheusRule"]["spec"]))
    (tmp_path / "prometheus.yml").write_text(json.dumps(configuration(cluster, kube.namespace, objects["PodMonitor"])))
    built = subprocess.run([ROOT / "tools/build", "prometheus"], check=True, stdout=subprocess.PIPE, text=True)
    process = subprocess.Popen(
        cluster.provider.wrap([
            f"{built.stdout.strip()}/prometheus", f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{port}",
        ]),
        stdout=subprocess.DEVNULL,
        stderr=(tmp_path / "prometheus.log").open("wb"),
    )  # fmt: skip

    def get(path: str) -> tuple[int, Any]:
        done = cluster.run([sys.executable, "-c", GET, f"http://127.0.0.1:{port}{path}"], capture_output=True)
        return 200, json.loads(done.stdout)

    def ready() -> bool:
        asked = [sys.executable, "-c", GET, f"http://127.0.0.1:{port}/-/ready"]
        return cluster.run(asked, check=False, capture_output=True).returncode == 0

    try:
        kube.until("Prometheus to be ready", ready, 120)
        yield Prometheus(get)
    finally:
        process.terminate()
        process.wait(30)


def configuration(cluster: Cluster, namespace: str, monitor: dict[str, Any]) -> dict[str, Any]:
    """Return Prometheus' configuration for a PodMonitor; a pod is reached through the API server."""
    told = yaml.safe_load(Path(cluster.env["KUBECONFIG"]).read_text())
    server, user = told["clusters"][0]["cluster"], told["users"][0]["user"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (expression,) = monitor["spec"]["selector"]["matchExpressions"]
    label = f"__meta_kubernetes_pod_label_{re.sub(r'[^A-Za-z0-9]', '_', expression['key'])}"
    relabelings = [
        {"source_labels": [label], "regex": "|".join(expression["values"]), "action": "keep"},
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
        {"target_label": "__address__", "replacement": urlsplit(server["server"]).netloc},
    ]
    return {
        "global": {"scrape_interval": "2s", "evaluation_interval": "2s"},
        "rule_files": ["rules.json"],
        "scrape_configs": [
            {
                "job_name": "runs",
                "scheme": "https",
                "tls_config": {
                    **_inline(server, "certificate-authority", "ca"),
                    **_inline(user, "client-certificate", "cert"),
                    **_inline(user, "client-key", "key"),
                },
                "kubernetes_sd_configs": [
                    {"role": "pod", "kubeconfig_file": cluster.env["KUBECONFIG"], "namespaces": {"names": [namespace]}}
                ],
                "relabel_configs": relabelings,
            }
        ],
    }


def _inline(told: dict[str, str], name: str, key: str) -> dict[str, str]:
    if f"{name}-data" in told:
        return {key: base64.b64decode(told[f"{name}-data"]).decode()}
    return {f"{key}_file": told[name]}


def test_a_run_is_found_and_seen_and_its_alerts_are_evaluated(
    runtime: None, inputs: str, kube: Kube, prometheus: Prometheus, objects: dict[str, Any]
) -> None:
    run = Run(kube, NAME)
    run.delete()
    args = [*(word for word in LORA_SFT if "max_steps" not in word), "--max_steps=500"]
    kube.create(trainjob(NAME, args, nodes=2, runtime=RUNTIME))
    try:
        run.wait_steps(3)
        kube.until("a loss", lambda: prometheus.query('stoker_run_metric{metric="loss"}'), 60)
        kube.until("both nodes", lambda: len(prometheus.query("stoker_node_step")) == 2, 60)
        (seen,) = prometheus.query('stoker_run_metric{metric="loss"}')
        told = {name: seen["metric"][name] for name in ("namespace", "run", "runtime", "node_rank")}
        assert told == {"namespace": kube.namespace, "run": NAME, "runtime": RUNTIME, "node_rank": "0"}
        assert {item["metric"]["node_rank"] for item in prometheus.query("stoker_node_step")} == {"0", "1"}

        # What a run of SFT has is on the dashboard.
        (text,) = objects["ConfigMap"]["data"].values()
        panels = {
            panel["title"]: [filled(target["expr"], kube.namespace) for target in panel["targets"]]
            for panel in json.loads(text)["panels"]
        }
        for title in ("Loss", "Steps done", "Learning rate", "Gradient norm", "Peak memory", "Restarts"):
            assert any(prometheus.numbers(expression) for expression in panels[title]), title

        (group,) = objects["PrometheusRule"]["spec"]["groups"]
        alerts = prometheus.rules()
        assert alerts.keys() == {rule["alert"] for rule in group["rules"]}
        kube.until("every rule", lambda: all(one["health"] == "ok" for one in prometheus.rules().values()), 30)
        assert {one["state"] for one in alerts.values()} == {"inactive"}
    finally:
        run.delete()


def filled(expression: str, namespace: str) -> str:
    """Return an expression of the dashboard with its variables filled in."""
    return expression.replace("$run", NAME).replace("$namespace", namespace)
