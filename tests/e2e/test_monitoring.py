"""Runs as Prometheus sees them: found by the chart's PodMonitor, scraped through the API server, alerts evaluated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.helm import TRAINING_RUNTIMES, manifests, output
from charts.prometheus import Prometheus
from cluster import Cluster
from e2e import prometheus as processes
from e2e.kube import Kube
from e2e.trainjobs import LORA_SFT, Run, trainjob

RELEASE = "monitored"
RUNTIME = "monitored-sft"
NAME = "seen"
NAMESPACE = "stoker-monitored"
SETTINGS = {"profile": "none", "accelerator": "cpu", "runtimes": {RUNTIME: {"base": "trl-distributed"}}}

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
    settings += ['monitoring={"podMonitor":true,"rules":true,"dashboard":true}', "skipApiCheck=true"]
    words = [word for setting in settings for word in ("--set-json", setting)]
    # They look for the runs of this release.
    text = output("helm", "template", RELEASE, TRAINING_RUNTIMES, "--namespace", NAMESPACE, *words)
    kinds = ("PodMonitor", "PrometheusRule", "ConfigMap")
    return {item["kind"]: item for item in manifests(text) if item["kind"] in kinds}


@pytest.fixture
def prometheus(cluster: Cluster, kube: Kube, objects: dict[str, Any], tmp_path: Path) -> Iterator[Prometheus]:
    """A Prometheus with what the operator makes of these objects; it reaches pods as kubectl does."""
    with processes.prometheus(cluster, kube, objects["PodMonitor"], tmp_path, objects["PrometheusRule"]["spec"]) as (
        found,
        _,
    ):
        yield found


def test_a_run_is_found_and_seen_and_its_alerts_are_evaluated(
    runtime: None, inputs: str, kube: Kube, prometheus: Prometheus, objects: dict[str, Any]
) -> None:
    run = Run(kube, NAME)
    run.delete()
    args = [*(word for word in LORA_SFT if "max_steps" not in word), "--max_steps=500"]
    kube.create(trainjob(NAME, args, nodes=2, runtime=RUNTIME))
    try:
        run.wait_steps(3)
        (seen,) = kube.until("a loss", lambda: prometheus.query('stoker_run_metric{metric="loss"}'), 180)
        told = {name: seen["metric"][name] for name in ("namespace", "run", "runtime", "node_rank")}
        assert told == {"namespace": kube.namespace, "run": NAME, "runtime": RUNTIME, "node_rank": "0"}

        def ranks() -> set[str]:
            return {item["metric"]["node_rank"] for item in prometheus.query("stoker_node_step")}

        # Between two scrapes of which one was late, nothing is known of a node.
        kube.until("both nodes", lambda: ranks() == {"0", "1"}, 180)

        # What a run of SFT has is on the dashboard.
        (text,) = objects["ConfigMap"]["data"].values()
        panels = {
            panel["title"]: [filled(target["expr"], kube.namespace) for target in panel["targets"]]
            for panel in json.loads(text)["panels"]
        }
        of_sft = ("Loss", "Steps done", "Learning rate", "Gradient norm", "Peak memory", "Restarts")
        for title in (*of_sft, "Seconds since the last sign of life", "What the nodes do"):
            kube.until(f"panel {title} to show something", partial(shows, prometheus, panels[title]), 300)

        (group,) = objects["PrometheusRule"]["spec"]["groups"]
        alerts = prometheus.rules()
        assert alerts.keys() == {rule["alert"] for rule in group["rules"]}
        kube.until("every rule", lambda: all(one["health"] == "ok" for one in prometheus.rules().values()), 120)
        # A run of a few steps on a busy machine is slow now and then; the alert waits for a quarter of an hour.
        active = {name: one["state"] for name, one in alerts.items() if one["state"] != "inactive"}
        assert active in ({}, {"RunSlowsDown": "pending"})
    finally:
        run.delete()


def shows(prometheus: Prometheus, expressions: Sequence[str]) -> bool:
    """Return whether a panel with these expressions shows something."""
    return any(prometheus.numbers(expression) for expression in expressions)


def filled(expression: str, namespace: str) -> str:
    """Return an expression of the dashboard with its variables filled in."""
    return expression.replace("$run", NAME).replace("$namespace", namespace)
