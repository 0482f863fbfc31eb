"""The proxy of the serving chart, for real: what it lets through, to whom, and how."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from charts.helm import ROOT, VLLM_SERVING, render
from charts.serving_settings import settings_files

KEY = "the-key"
CONTROL = ("/pause", "/collective_rpc", "/invocations", "/v1/load_lora_adapter", "/server_info", "/metrics")
PORTS = (8000, 8080, 8082, 8090)


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

    def ask(self, path: str, port: int = 8080, key: str = KEY, body: bytes | None = None) -> Answer:
        """Return the answer to a request for a path exactly as it is written."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[port]}{path}", body)
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return Answer(answer.status, answer.read().decode())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read().decode())


@pytest.fixture(scope="module")
def upstream() -> Iterator[int]:
    """The port of a server that answers every path with that path, or with a stream of events."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

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


@pytest.fixture(scope="module")
def caddy() -> Path:
    """The image's program, built on this machine."""
    printed = subprocess.run([ROOT / "tools/build", "proxy"], check=True, stdout=subprocess.PIPE, text=True).stdout
    (program,) = Path(printed.strip()).iterdir()
    return program


@pytest.fixture
def start(caddy: Path, upstream: int, tmp_path: Path) -> Iterator[Callable[..., Proxy]]:
    """Starts the proxy of a release with further values."""
    running: list[subprocess.Popen[bytes]] = []

    def run(*settings: str) -> Proxy:
        given = ['model.claim.name="models"', 'api.keySecret="model-key"', 'accelerator="cpu"', *settings]
        objects = render(VLLM_SERVING, settings=given)
        text = settings_files(objects)["Caddyfile"]
        ports = {8000: upstream, **{port: free_port() for port in PORTS[1:]}}
        for port, mine in ports.items():
            text = text.replace(f":{port}", f":{mine}")
        keys = tmp_path / "keys"
        keys.mkdir()
        (keys / "api-key").write_text(f"{KEY}\n")
        file = tmp_path / "Caddyfile"
        file.write_text(text.replace("/keys", str(keys)))
        log = (tmp_path / "log").open("wb")
        running.append(subprocess.Popen([caddy, "run", "--config", file, "--adapter", "caddyfile"], stderr=log))
        deadline = time.monotonic() + 30
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


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


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
        with socket.create_connection(("127.0.0.1", proxy.ports[8080]), timeout=5) as connection:
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
    with urllib.request.urlopen(request, timeout=10) as answer:
        seconds = [time.monotonic() - started for _ in answer]
    assert len(seconds) == 3
    assert seconds[2] - seconds[0] > 0.4


def test_a_request_that_is_too_large_is_refused(start: Callable[..., Proxy]) -> None:
    proxy = start('api.maxBodySize="10KB"')
    assert proxy.ask("/v1/completions", body=b"x" * 5_000).status == 200
    assert proxy.ask("/v1/completions", body=b"x" * 20_000).status == 413


def test_reinforcement_learning_gets_a_port_of_its_own_with_the_same_key(start: Callable[..., Proxy]) -> None:
    proxy = start('rl={"enabled": true, "peers": [{"podSelector": {}}]}')
    assert proxy.ask("/pause", port=8090, body=b"{}").status == 200
    assert proxy.ask("/pause", port=8090, body=b"{}", key="").status == 401
    assert proxy.ask("/collective_rpc", port=8090, body=b"{}").status == 404
    assert proxy.ask("/pause", body=b"{}").status == 404


def test_the_proxy_tells_what_it_did_and_logs_no_key(start: Callable[..., Proxy], tmp_path: Path) -> None:
    proxy = start()
    proxy.ask("/v1/models")
    assert "caddy_http_requests_total" in proxy.ask("/proxy/metrics", port=8082).text
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert any(line.get("request", {}).get("uri") == "/v1/models" for line in lines)
    assert KEY not in (tmp_path / "log").read_text()
