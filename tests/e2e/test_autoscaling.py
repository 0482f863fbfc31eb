"""The serving chart under Kubernetes' own autoscaler, which a real Prometheus tells of requests by a real adapter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster import Cluster
from e2e.kube import Kube, condition
from e2e.prometheus import adapter, metrics_server, prometheus
from e2e.serving.fixtures import MODELS, Install
from e2e.serving.server import Client, Server
from lint.snippets import snippets

pytestmark = pytest.mark.full  # a second replica takes a minute to start on a small machine

NAME = "elastic"
# One request at a time, so that a few askers are a crowd; and an autoscaler that need not wait for minutes.
SETTINGS: dict[str, Any] = {
    "model": {"claim": {"name": MODELS}, "name": "base"},
    "monitoring": {"scrapedElsewhere": True},
    "args": {"max-num-seqs": "1"},
    "autoscaling": {
        "kind": "hpa",
        "minReplicas": 1,
        "maxReplicas": 2,
        "waitingRequests": 1,
        # More than ever run at once, so that the queue alone starts another replica.
        "runningRequests": 5,
        # Kubernetes' own window of 300 seconds holds the second replica until it has started.
        "behavior": {"scaleDown": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 15}]}},
    },
}


@pytest.fixture
def rules() -> dict[str, Any]:
    """The adapter's rules as the guide has them."""
    blocks = [one.text for one in snippets("yaml") if one.where.startswith("docs/guides/serving.md:")]
    (found,) = [made for made in map(yaml.safe_load, blocks) if "rules" in made]
    return dict(found)


@pytest.fixture
def server(
    cluster: Cluster,
    serving_kube: Kube,
    helm: Callable[..., str],
    serving_chart: list[str],
    install: Install,
    models: str,
    rules: dict[str, Any],
    tmp_path: Path,
) -> Iterator[Server]:
    """A release with an autoscaler that sees its requests."""
    if cluster.provider.name != "embedded":
        pytest.skip("the adapter has to run where the API server does, as in the embedded cluster")
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(SETTINGS))
    # The cluster has no Prometheus Operator, so its object is made and not installed.
    rendered = helm(
        "template", NAME, *serving_chart, "--values", str(values), "--set", "monitoring.podMonitor=true",
        "--set", "skipApiCheck=true", "--show-only", "templates/podmonitor.yaml",
    )  # fmt: skip
    (monitor,) = yaml.safe_load_all(rendered.partition("---\n")[2])  # behind what Helm says of the chart it pulled
    folders = [tmp_path / name for name in ("prometheus", "adapter", "metrics-server")]
    for folder in folders:
        folder.mkdir()
    found = install(NAME, "--values", str(values))
    with (
        prometheus(cluster, serving_kube, monitor, folders[0]) as (_, address),
        adapter(cluster, serving_kube, address, rules, folders[1]),
        metrics_server(cluster, serving_kube, folders[2]),
    ):
        yield found
    # Its adapter is gone, so that it could not even scale down.
    helm("uninstall", NAME, "--namespace", serving_kube.namespace, "--wait")


def test_a_crowd_starts_a_second_replica_and_quiet_ends_it_without_a_failed_request(
    server: Server, client: Client
) -> None:
    kube = server.kube
    autoscaler: Callable[[], dict[str, Any]] = lambda: kube.get("hpa", NAME) or {}  # noqa: E731
    with client.busy(server.url, "base", pause=5, askers=1) as quiet:  # several at once would be a queue
        kube.until("the autoscaler to see requests", lambda: condition(autoscaler(), "ScalingActive"), 300)

    def seen() -> set[str]:
        found = autoscaler().get("status", {}).get("currentMetrics") or ()
        return {metric["pods"]["metric"]["name"] for metric in found if "pods" in metric}

    wanted = {"vllm_num_requests_waiting", "vllm_num_requests_running"}
    kube.until("both its metrics", lambda: seen() == wanted, 120)
    (replica,) = server.pods()
    assert quiet["failures"] == []

    def top() -> list[str]:
        return kube.kubectl("top", "pod", replica["metadata"]["name"], "--no-headers", check=False).stdout.split()

    used = kube.until("the metrics server to have looked twice", top, 300)
    assert used[0] == replica["metadata"]["name"]
    assert int(used[2].removesuffix("Mi")) > 200, "a server holds its model"

    # Without a pause, so that a quick engine has a queue at every moment: the autoscaler looks every 15 seconds.
    with client.busy(server.url, "base", pause=0, askers=12) as crowd:
        kube.until("a second replica", lambda: len(server.pods()) == 2, 300)
    # The crowd would take the processor that the second replica starts on. Now one asks: several would be two requests
    # at once now and then, which keeps both replicas.
    with client.busy(server.url, "base", pause=5, askers=1) as quiet:
        server.wait_ready(2, seconds=480)
        server.wait_ready(1, seconds=600)
    assert crowd["requests"] > 20
    assert crowd["failures"] == []
    assert quiet["requests"] > 0
    assert quiet["failures"] == []
