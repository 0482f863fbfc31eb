"""The proxy of the serving chart, for real: what it lets through, to whom, and how."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from runner.tests.rollouts.replicas import replicas_of

from charts.helm import ROOT, VLLM_SERVING, render
from charts.proxy_checks import KEY, leave_keys_everywhere, status_with_a_body
from charts.serving_settings import settings_files
from stoker.cluster.processes import free_ports
from stoker.contract.exits import ExitCode, RunError
from stoker.rollouts.addresses import addresses_in
from stoker.rollouts.fleet import Fleet
from stoker.rollouts.records import Request
from stoker.rollouts.replicas import Needs

CONTROL = ("/pause", "/collective_rpc", "/invocations", "/v1/load_lora_adapter", "/server_info", "/metrics")
PORTS = (8000, 8081, 8080, 8082, 8090)
TRAINERS = 'rl={"enabled": true, "peers": [{"podSelector": {}}]}'
SHARED = 'rl={"enabled": true, "adaptersOnly": true, "peers": [{"podSelector": {}}]}'
ADAPTERS = ('published.claim="adapters"', "lora.maxRank=16")


class Answer(NamedTuple):
    """What came back."""

    status: int
    text: str


class Proxy:
    """A running proxy.

    Args:
        ports: the port of this machine that stands for each of the pod's.
        keys: the folder of the secret.
    """

    def __init__(self, ports: dict[int, int], keys: Path) -> None:
        self.ports, self.keys = ports, keys

    def ask(
        self, path: str, port: int = 8080, key: str = KEY, body: bytes | None = None, headers: Mapping[str, str] = {}
    ) -> Answer:
        """Return the answer to a request for a path exactly as it is written."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[port]}{path}", body, dict(headers))
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return Answer(answer.status, answer.read().decode())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read().decode())


@pytest.fixture(scope="module")
def upstream() -> Iterator[int]:
    """The port of a server that answers every path with that path, or with a stream of events."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # a kept connection waits 40 ms for each body otherwise

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            stream = self.path == "/v1/chat/completions"
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.send_header("Content-Type", "text/event-stream" if stream else "text/plain")
            self.end_headers()
            for _ in range(3 if stream else 1):
                event = f"{self.path}\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                self.wfile.flush()
                time.sleep(0.3 if stream else 0)
            self.wfile.write(b"0\r\n\r\n")

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


@pytest.fixture
def start(caddy: Path, upstream: int, tmp_path: Path) -> Iterator[Callable[..., Proxy]]:
    """Starts the proxy of a release with further values."""
    running: list[subprocess.Popen[bytes]] = []

    def run(*settings: str, upstream: int = upstream, watcher: int | None = None) -> Proxy:
        given = ['model.claim.name="models"', 'api.keySecret="model-key"', 'accelerator="cpu"', *settings]
        objects = render(VLLM_SERVING, settings=given)
        text = settings_files(objects)["Caddyfile"]
        behind = {8000: upstream, 8081: watcher or free_ports(1)[0]}
        ports = {**behind, **dict(zip(PORTS[2:], free_ports(len(PORTS) - 2), strict=True))}
        for port, mine in ports.items():
            text = text.replace(f":{port}", f":{mine}")
        keys = tmp_path / "keys"
        keys.mkdir()
        (keys / "api-key").write_text(f"{KEY}\n")
        file = tmp_path / "Caddyfile"
        file.write_text(text.replace("/keys", str(keys)))
        log = (tmp_path / "log").open("wb")
        running.append(subprocess.Popen([caddy, "run", "--config", file, "--adapter", "caddyfile"], stderr=log))
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{ports[8082]}/proxy/health", timeout=5).close()
                return Proxy(ports, keys)
            except OSError:
                assert running[-1].poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)

    yield run
    for process in running:
        process.terminate()
        process.wait()


def test_the_paths_of_the_api_are_open_with_the_key_alone(start: Callable[..., Proxy]) -> None:
    proxy = start()
    assert proxy.ask("/v1/models") == (200, "/v1/models\n")
    for key in ("", "another", KEY + "x", "{http.vars.key}"):
        refused = proxy.ask("/v1/models", key=key)
        assert refused.status == 401
        assert json.loads(refused.text)["error"]["type"] == "authentication_error"
    assert proxy.ask("/health", key="").status == 200


def test_what_controls_the_server_is_not_there(start: Callable[..., Proxy]) -> None:
    proxy = start()
    for path in (*CONTROL, "//pause", "/v1/../pause", "/%70ause", "/v1/models/../../pause", "/V1/PAUSE"):
        answer = proxy.ask(path, body=b"{}")
        assert (path, answer.status) == (path, 404)
    # A path that reads as an open one goes on as it was written: the server itself knows none of that name.
    assert proxy.ask("/pause/../v1/models") == (200, "/pause/../v1/models\n")
    for path in CONTROL[:-1]:
        assert proxy.ask(path, port=8082).status == 404


def test_a_connection_brings_one_request(start: Callable[..., Proxy]) -> None:
    """One that is kept would bring further requests to a replica that is about to end, past the Service."""
    proxy = start()
    for path, key, status in (("/v1/models", KEY, 200), ("/v1/chat/completions", KEY, 200), ("/v1/models", "", 401)):
        with socket.create_connection(("127.0.0.1", proxy.ports[8080]), timeout=120) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
            with connection.makefile("rb") as stream:
                answer = stream.read()
        head = answer.partition(b"\r\n\r\n")[0].decode().splitlines()
        assert head[0].split()[1] == str(status)
        assert "Connection: close" in head


def test_a_key_changes_without_a_restart(start: Callable[..., Proxy]) -> None:
    proxy = start()
    (proxy.keys / "api-key-next").write_text("the-next")
    assert [proxy.ask("/v1/models", key=key).status for key in (KEY, "the-next")] == [200, 200]
    (proxy.keys / "api-key").write_text("the-next")
    (proxy.keys / "api-key-next").unlink()
    assert [proxy.ask("/v1/models", key=key).status for key in (KEY, "the-next")] == [401, 200]


def test_without_a_key_nothing_is_open(start: Callable[..., Proxy]) -> None:
    proxy = start()
    for content in ("", None):
        if content is None:
            (proxy.keys / "api-key").unlink()
        else:
            (proxy.keys / "api-key").write_text(content)
        assert [proxy.ask("/v1/models", key=key).status for key in ("", " ", KEY)] == [401] * 3


def test_an_anonymous_server_asks_for_no_key(start: Callable[..., Proxy]) -> None:
    proxy = start('api={"anonymous": true, "keySecret": ""}')
    assert proxy.ask("/v1/models", key="").status == 200
    assert proxy.ask("/pause", key="", body=b"{}").status == 404


@pytest.mark.alone
def test_answers_are_streamed_as_they_come(start: Callable[..., Proxy]) -> None:
    proxy = start()
    request: Any = urllib.request.Request(
        f"http://127.0.0.1:{proxy.ports[8080]}/v1/chat/completions", b"{}", {"Authorization": f"Bearer {KEY}"}
    )
    started = time.monotonic()
    with urllib.request.urlopen(request, timeout=120) as answer:
        seconds = [time.monotonic() - started for _ in answer]
    assert len(seconds) == 3
    assert seconds[2] - seconds[0] > 0.4


def test_a_request_that_is_too_large_is_refused(start: Callable[..., Proxy]) -> None:
    proxy = start('api.maxBodySize="10KB"')
    assert proxy.ask("/v1/completions", body=b"x" * 5_000).status == 200
    assert proxy.ask("/v1/completions", body=b"x" * 20_000).status == 413


def test_reinforcement_learning_gets_a_port_of_its_own_with_the_same_key(start: Callable[..., Proxy]) -> None:
    proxy = start(TRAINERS)
    assert proxy.ask("/pause", port=8090, body=b"{}").status == 200
    assert proxy.ask("/pause", port=8090, body=b"{}", key="").status == 401
    assert proxy.ask("/collective_rpc", port=8090, body=b"{}").status == 404
    assert proxy.ask("/pause", body=b"{}").status == 404


def test_a_trainer_reaches_vllm_and_the_watcher_at_one_port(start: Callable[..., Proxy], upstream: int) -> None:
    proxy = start(TRAINERS, watcher=upstream)
    for path in ("/v1/completions", "/v1/models", "/adapters", "/look"):
        assert (path, *proxy.ask(path, port=8090, body=b"{}")) == (path, 200, f"{path}\n")
        assert (path, proxy.ask(path, port=8090, body=b"{}", key="").status) == (path, 401)
    for path in ("/readyz", "/healthz", "/metrics", "/adapters/", "/look/../metrics", "/v1/chat/completions"):
        assert (path, proxy.ask(path, port=8090, body=b"{}").status) == (path, 404)
    for path in ("/adapters", "/look"):
        assert (path, proxy.ask(path).status) == (path, 404), "no client's"


def test_a_watcher_that_is_away_is_told_from_a_server_without_one(start: Callable[..., Proxy]) -> None:
    proxy = start(TRAINERS)
    assert proxy.ask("/adapters", port=8090).status == 502
    assert proxy.ask("/v1/models", port=8090).status == 200


def test_trainers_that_share_a_release_change_nothing_of_it(start: Callable[..., Proxy], upstream: int) -> None:
    proxy = start(SHARED, *ADAPTERS, watcher=upstream)
    for path in ("/v1/completions", "/v1/models", "/tokenize", "/adapters", "/look"):
        assert (path, proxy.ask(path, port=8090, body=b"{}").status) == (path, 200)
    for path in (*CONTROL, "/sleep", "/update_weights", "/v1/unload_lora_adapter", "/inference/v1/generate"):
        assert (path, proxy.ask(path, port=8090, body=b"{}").status) == (path, 404)


def test_without_reinforcement_learning_there_is_no_such_port(start: Callable[..., Proxy]) -> None:
    proxy = start()
    with pytest.raises(urllib.error.URLError):
        proxy.ask("/adapters", port=8090)


def test_a_fleet_samples_through_the_proxy(start: Callable[..., Proxy], tmp_path: Path) -> None:
    """A trainer's own client, through the release's proxy and with its key."""
    with replicas_of(tmp_path) as replicas:
        (replica,) = replicas.start(sees=True)
        proxy = start(SHARED, *ADAPTERS, upstream=replica.port, watcher=replica.port)
        addresses = addresses_in(f"http://127.0.0.1:{proxy.ports[8090]}")
        for key, message in ((KEY, ""), ("another", "it refuses the key in STOKER_SAMPLERS_API_KEY")):
            fleet = Fleet(addresses, "run-a0", Needs(loras=6, rank=16), wait_seconds=20, key=key)
            try:
                if message:
                    with pytest.raises(RunError, match=message):
                        fleet.check()
                    continue
                fleet.check()
                request = Request((7, 5), 0, 7, 0, 0, max_tokens=3, temperature=1.0, seed=1)
                assert asyncio.run(fleet.complete(request)).completion_ids == (replica.port % 1000,) * 3
            finally:
                fleet.close()
        assert replica.named == ["run-a0"]


def test_a_release_without_reinforcement_learning_is_no_sampler(start: Callable[..., Proxy]) -> None:
    """Who names the port for clients learns it before the first step."""
    fleet = Fleet(addresses_in(f"http://127.0.0.1:{start().ports[8080]}"), "run-a0", Needs(), key=KEY)
    try:
        with pytest.raises(RunError, match=r"it has no /adapters: .* with rl\.enabled") as ending:
            fleet.check()
        assert ending.value.code is ExitCode.CONFIG
    finally:
        fleet.close()


def test_the_proxy_tells_what_it_did_and_logs_no_key(start: Callable[..., Proxy], tmp_path: Path) -> None:
    proxy = start()
    proxy.ask("/v1/models", headers={"User-Agent": "the-client/1"})
    lines = leave_keys_everywhere(proxy.ask, tmp_path / "log")
    assert "caddy_http_requests_total" in proxy.ask("/proxy/metrics", port=8082).text
    assert any(line["request"]["uri"] == "/v1/models" and line.get("user_agent") == "the-client/1" for line in lines)
    assert any(line["request"]["uri"] == "/v1/models?REDACTED" for line in lines)


def test_a_server_that_does_not_answer_brings_no_key_into_the_log(start: Callable[..., Proxy], tmp_path: Path) -> None:
    """Such requests have a line in the log of errors, besides that of what was asked."""
    lines = leave_keys_everywhere(start(upstream=free_ports(1)[0]).ask, tmp_path / "log")
    assert any(line["logger"].startswith("http.log.error") for line in lines)


def test_a_key_is_compared_in_a_time_that_tells_nothing_of_it(start: Callable[..., Proxy], caddy: Path) -> None:
    """By the module that the image adds; a comparison in the configuration ends at the first letter that differs."""
    listed = subprocess.run([caddy, "list-modules"], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert "http.matchers.bearer_key" in listed.splitlines()
    source = (ROOT / "images/proxy/key.go").read_text()
    assert "subtle.ConstantTimeCompare(" in source
    assert "expression" not in configuration()
    # Of another length, or only partly the same: all are wrong alike.
    proxy = start()
    for key in (KEY[:-1], KEY + KEY, KEY.upper(), f" {KEY}", f"{KEY},{KEY}"):
        assert proxy.ask("/v1/models", key=key).status == 401


def configuration() -> str:
    """Return the proxy's configuration in a release with a key and all that can be open."""
    return settings_files(render(VLLM_SERVING, [VLLM_SERVING / "ci/full-values.yaml"]))["Caddyfile"]


def test_health_is_open_to_everybody_and_takes_nothing(start: Callable[..., Proxy]) -> None:
    proxy = start()
    assert proxy.ask("/health", key="").status == 200
    assert proxy.ask("/health", key="", body=b"{}").status == 404
    assert status_with_a_body(proxy.ports[8080], "/health") == 413


def test_health_is_no_longer_waited_for_than_a_server_may_think(start: Callable[..., Proxy]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and never says a word
        proxy = start(upstream=silent.getsockname()[1])
        assert proxy.ask("/health", key="").status == 504
