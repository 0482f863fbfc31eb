"""A run's samplers: nodes alone reach them, at one port, and nobody changes through it what they serve."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from charts.helm import TRAINING_RUNTIMES, Manifest, render
from charts.proxy_checks import KEY, leave_keys_everywhere, status_with_a_body
from charts.runtimes import containers as of_pods
from charts.runtimes import jobs, runtimes
from stoker.cluster.processes import free_ports
from stoker.lab import LabError, Policy

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
        (spec["podSelector"]["matchLabels"]["stoker.dev/role"], _session(spec)): spec for spec in _specs(objects)
    }
    nodes = [
        {
            "podSelector": {
                "matchLabels": {"stoker.dev/role": "node"},
                "matchExpressions": [{"key": "stoker.dev/session", "operator": "DoesNotExist"}],
            }
        }
    ]
    assert policies["sampler", "DoesNotExist"]["ingress"] == [{"from": nodes, "ports": [{"port": PORT}]}]
    assert policies["node", "DoesNotExist"]["policyTypes"] == ["Ingress"]
    assert policies["node", "DoesNotExist"]["ingress"] == [{"from": nodes}]
    names = [{"port": port, "protocol": protocol} for port in (53, 5353) for protocol in ("UDP", "TCP")]
    for session in ("Exists", "DoesNotExist"):
        assert policies["sampler", session]["policyTypes"] == ["Ingress", "Egress"]
        assert policies["sampler", session]["egress"] == [{"ports": names}]
    for role in ("node", "sampler"):
        assert templates[role]["metadata"]["labels"]["stoker.dev/role"] == role


def test_nobody_reaches_a_session_but_who_its_own_policy_names(objects: list[Manifest]) -> None:
    closed = {
        spec["podSelector"]["matchLabels"]["stoker.dev/role"]: spec["ingress"]
        for spec in _specs(objects)
        if _session(spec) == "Exists"
    }
    assert closed == {"node": [], "sampler": []}


def _specs(objects: list[Manifest]) -> list[Manifest]:
    return [item["spec"] for item in objects if item["kind"] == "NetworkPolicy"]


def _session(spec: Manifest) -> str:
    (expression,) = spec["podSelector"]["matchExpressions"]
    assert expression["key"] == "stoker.dev/session"
    return str(expression["operator"])


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
    paths = {path for line in re.findall(r"\bpath (.*)", configuration) for path in line.split()}
    asking = {"/v1/completions", "/v1/models", "/tokenize", "/health", "/metrics"}
    assert paths == {*asking, "/look", "/adapters", "/readyz", "/healthz", "/proxy/health"}
    assert "handle {\n\t\trespond 404" in configuration
    # Peers would need ports of their own to hand weights over.
    assert not any("weight-transfer" in word for word in containers["vllm"]["args"])


class Ask:
    """Asks a proxy for a status.

    Args:
        port: the proxy's.

    Attributes:
        port: the proxy's port.
        url: the proxy's address.
    """

    def __init__(self, port: int) -> None:
        self.port, self.url = port, f"http://127.0.0.1:{port}"

    def __call__(self, path: str, key: str = "", body: bytes | None = None, headers: Mapping[str, str] = {}) -> int:
        """Return the status of an answer."""
        request = urllib.request.Request(f"{self.url}{path}", body, dict(headers))
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code


@pytest.fixture
def proxy(caddy: Path, templates: dict[str, Manifest], tmp_path: Path) -> Iterator[Callable[..., Ask]]:
    """Starts a sampler's proxy with a value of SESSION_GUARD; returns what asks it for a status."""
    running: list[subprocess.Popen[bytes]] = []
    servers: list[ThreadingHTTPServer] = []

    class Answers(BaseHTTPRequestHandler):
        """Lists two models, and answers each prompt with the model that it was asked of."""

        def do_GET(self) -> None:
            self._answer({"data": [{"id": "version-3", "parent": "base"}, {"id": "base"}]})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer({"choices": [{"text": asked["model"], "token_ids": [7], "finish_reason": "stop"}]})

        def _answer(self, what: object) -> None:
            text = json.dumps(what).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    def start(guard: str, upstream: int | None = None) -> Ask:
        for _ in range(2):  # vLLM and the watcher
            servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Answers))
            threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        mine = free_ports(1)[0]
        text = templates["sampler"]["metadata"]["annotations"]["stoker.dev/Caddyfile"]
        behind = (upstream or server.server_address[1] for server in servers[-2:])
        for port, other in zip((8000, 8081, PORT), (*behind, mine), strict=True):
            text = text.replace(f":{port}", f":{other}")
        (tmp_path / "api-key").write_text(f"{KEY}\n")
        file = tmp_path / "Caddyfile"
        file.write_text(text.replace("/keys", str(tmp_path)))
        words = [str(caddy), "run", "--config", str(file), "--adapter", "caddyfile"]
        with (tmp_path / "log").open("wb") as log:
            running.append(subprocess.Popen(words, env={"SESSION_GUARD": guard, "HOME": str(tmp_path)}, stderr=log))

        ask = Ask(mine)
        deadline = time.monotonic() + 120
        while True:
            try:
                ask("/proxy/health")
                return ask
            except OSError:
                assert running[-1].poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)

    yield start
    for process in running:
        process.terminate()
        process.wait()
    for server in servers:
        server.shutdown()


def test_the_samplers_of_a_session_ask_for_its_key(proxy: Callable[..., Ask]) -> None:
    ask = proxy("keyed")
    for path in ("/v1/completions", "/v1/models", "/tokenize", "/metrics", "/adapters", "/look"):
        assert [ask(path, key) for key in ("", "another", KEY + "x", KEY)] == [401, 401, 401, 200], path
    # Probes have no key.
    assert [ask(path) for path in ("/health", "/readyz", "/healthz", "/proxy/health")] == [200] * 4
    for path in ("/health/../v1/models", "/pause", "/"):
        assert ask(path) == 401, path
    assert ask("/pause", KEY) == 404


def test_a_server_that_does_not_answer_brings_no_key_into_the_log(proxy: Callable[..., Ask], tmp_path: Path) -> None:
    lines = leave_keys_everywhere(proxy("keyed", upstream=free_ports(1)[0]), tmp_path / "log")
    assert any(line["logger"].startswith("http.log.error") for line in lines)


def test_what_probes_ask_is_open_to_everybody_and_takes_nothing(proxy: Callable[..., Ask]) -> None:
    ask = proxy("keyed")
    for path in ("/health", "/readyz", "/healthz"):
        assert [ask(path), ask(path, body=b"{}")] == [200, 404], path
        assert status_with_a_body(ask.port, path) == 413, path


def test_what_probes_ask_is_no_longer_waited_for_than_they_wait(proxy: Callable[..., Ask]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and never says a word
        ask = proxy("keyed", upstream=silent.getsockname()[1])
        with ThreadPoolExecutor() as together:
            assert list(together.map(ask, ("/health", "/readyz"))) == [504, 504]


def test_a_request_that_is_too_large_is_refused(proxy: Callable[..., Ask]) -> None:
    ask = proxy("keyed")
    assert ask("/v1/completions", KEY, body=json.dumps({"model": "x" * 1_000_000}).encode()) == 200
    assert status_with_a_body(ask.port, "/v1/completions", KEY, sent=300_000) == 413


def test_a_policy_of_the_lab_asks_a_session(proxy: Callable[..., Ask], monkeypatch: pytest.MonkeyPatch) -> None:
    url = proxy("keyed").url
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for name, asked in ((None, "base"), ("version-3", "version-3")):
        (answer,) = Policy(url=url, name=name).generate(["1+1="], max_tokens=1)
        assert (answer.text, answer.token_ids) == (asked, (7,))
    for key in ("another", ""):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        with pytest.raises(LabError, match=r"answered 401: The session's key is missing or wrong: set OPENAI_API_KEY"):
            Policy(url=url).generate(["1+1="])


def test_other_samplers_ask_for_no_key(proxy: Callable[..., Ask]) -> None:
    ask = proxy("")
    assert [ask(path) for path in ("/v1/models", "/adapters", "/health", "/pause")] == [200, 200, 200, 404]


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


def test_each_container_has_the_name_of_its_folder_in_a_shared_claim() -> None:
    """Kubernetes starts no container whose `subPathExpr` names a variable that the container does not have."""
    shared = render(TRAINING_RUNTIMES, [VALUES], ['workspace.existingClaim="runs"', "runtimes.trl-tinker.enabled=true"])
    mounting = [
        (container, mount)
        for container in of_pods(runtimes(shared))
        for mount in container["volumeMounts"]
        if mount["mountPath"] == "/workspace"
    ]
    assert {"node", "vllm", "adapters", "prepare"} <= {container["name"] for container, _ in mounting}
    for container, mount in mounting:
        assert mount["subPathExpr"] == "$(JOBSET_NAME)"
        assert "JOBSET_NAME" in {one["name"] for one in container.get("env", ())}, container["name"]
