"""A run's samplers: nodes alone reach them, at one port, and nobody changes through it what they serve."""

from __future__ import annotations

import re

import pytest

from charts.helm import TRAINING_RUNTIMES, Manifest, render
from charts.runtimes import jobs, runtimes

VALUES = TRAINING_RUNTIMES / "ci/grpo-async-cpu-values.yaml"
PORT = 8080


@pytest.fixture(scope="module")
def objects() -> list[Manifest]:
    """All objects of a catalogue with samplers."""
    return render(TRAINING_RUNTIMES, [VALUES], ["networkPolicy.enabled=true"])


@pytest.fixture(scope="module")
def templates(objects: list[Manifest]) -> dict[str, Manifest]:
    """The pod templates of the runtime with samplers, by its jobs."""
    (runtime,) = (one for one in runtimes(objects) if any(job["metadata"]["name"] == "sampler" for job in jobs(one)))
    return {job["metadata"]["name"]: job["spec"]["template"] for job in jobs(runtime)}


@pytest.fixture(scope="module")
def containers(templates: dict[str, Manifest]) -> dict[str, Manifest]:
    """The containers of a sampler, by name."""
    pod = templates["sampler"]["spec"]
    return {container["name"]: container for container in [*pod["initContainers"], *pod["containers"]]}


def test_nodes_alone_reach_samplers_which_reach_nobody(objects: list[Manifest], templates: dict[str, Manifest]) -> None:
    policies = {
        item["spec"]["podSelector"]["matchLabels"]["stoker.dev/role"]: item["spec"]
        for item in objects
        if item["kind"] == "NetworkPolicy"
    }
    nodes = [{"podSelector": {"matchLabels": {"stoker.dev/role": "node"}}}]
    assert policies["sampler"]["policyTypes"] == ["Ingress", "Egress"]
    assert policies["sampler"]["ingress"] == [{"from": nodes, "ports": [{"port": PORT}]}]
    names = [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    assert policies["sampler"]["egress"] == [{"ports": names}]
    assert policies["node"]["policyTypes"] == ["Ingress"]
    assert policies["node"]["ingress"] == [{"from": nodes}]
    for role in ("node", "sampler"):
        assert templates[role]["metadata"]["labels"]["stoker.dev/role"] == role


def test_everything_but_the_proxy_listens_on_loopback(containers: dict[str, Manifest]) -> None:
    assert "--host=127.0.0.1" in containers["vllm"]["args"]
    watcher = containers["adapters"]["args"]
    assert watcher[watcher.index("--host") + 1] == "127.0.0.1"
    ports = [port["containerPort"] for container in containers.values() for port in container.get("ports", ())]
    assert ports == [PORT]


def test_nobody_changes_through_the_proxy_what_is_served(
    templates: dict[str, Manifest], containers: dict[str, Manifest]
) -> None:
    configuration = templates["sampler"]["metadata"]["annotations"]["stoker.dev/Caddyfile"]
    paths = {path for line in re.findall(r"@\w+ path (.*)", configuration) for path in line.split()}
    asking = {"/v1/completions", "/v1/models", "/tokenize", "/health", "/metrics"}
    assert paths == {*asking, "/look", "/adapters", "/readyz", "/healthz"}
    assert "handle {\n\t\trespond 404" in configuration
    # Peers would need ports of their own to hand weights over.
    assert not any("weight-transfer" in word for word in containers["vllm"]["args"])


def test_what_runs_on_in_a_sampler_is_probed(containers: dict[str, Manifest]) -> None:
    lasting = {name for name, one in containers.items() if one.get("restartPolicy") == "Always"} | {"vllm"}
    assert lasting == {"proxy", "adapters", "vllm"}
    assert all("livenessProbe" in containers[name] for name in lasting)
    assert {name for name in lasting if "startupProbe" in containers[name]} == {"proxy", "vllm"}
    # A sampler is ready when the watcher says that it serves the newest version.
    assert {name for name in lasting if "readinessProbe" in containers[name]} == {"adapters"}


def test_nodes_are_watched_by_the_runner_and_not_by_probes(templates: dict[str, Manifest]) -> None:
    # design/watchdog-not-probes.md: the kubelet knows no phase, and what it stops is retried without limit.
    (node,) = templates["node"]["spec"]["containers"]
    assert not [key for key in node if key.endswith("Probe")]
    assert {"requests", "limits"} <= {*node["resources"]}


def test_samplers_write_nothing_into_the_workspace(containers: dict[str, Manifest]) -> None:
    mounts = [
        mount
        for container in containers.values()
        for mount in container["volumeMounts"]
        if mount["mountPath"] == "/workspace"
    ]
    assert len(mounts) == 3
    assert all(mount["readOnly"] for mount in mounts)
