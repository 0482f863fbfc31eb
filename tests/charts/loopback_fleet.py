"""A fleet on loopback: the chart's proxy for real, replicas at addresses of 127/8, and a name server that lists them.

Each replica is at one port of an address of its own, as pods are. It answers completions with the model's name that it
was asked for and its own address, and 404 for a model that it does not have.
"""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from charts.helm import VLLM_SERVING, Manifest, render
from stoker.cluster.processes import free_ports

VALUES = VLLM_SERVING / "ci/fleet-values.yaml"


class Names:
    """A name server: every name stands for the same addresses, which change."""

    def __init__(self) -> None:
        self.listed: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Answer no more."""
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                query, peer = self._socket.recvfrom(512)
            except OSError:
                return
            end = query.index(0, 12) + 5
            (kind,) = struct.unpack(">H", query[end - 4 : end - 2])
            found = [*self.listed] if kind == 1 else []  # A; there are no AAAA
            head = query[:2] + struct.pack(">HHHHH", 0x8580, 1, len(found), 0, 0)
            records = [struct.pack(">HHHIH", 0xC00C, 1, 1, 0, 4) + socket.inet_aton(ip) for ip in found]
            self._socket.sendto(head + query[12:end] + b"".join(records), peer)


class Server(ThreadingHTTPServer):
    """A replica's proxy, watcher and model in one.

    Attributes:
        models: what it has.
        groups: requests by group.
        seconds: that an answer takes.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, ip: str, port: int) -> None:
        self.ip, self.models, self.groups, self.seconds = ip, {"base"}, Counter[str](), 0.0
        self._open: set[socket.socket] = set()
        super().__init__((ip, port), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Take a connection."""
        connection, peer = super().get_request()
        self._open.add(connection)
        return connection, peer

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of connections that end: replicas are killed here."""

    def kill(self) -> None:
        """End as SIGKILL does: nobody is answered any more."""
        self.shutdown()
        self.server_close()
        for connection in [*self._open]:
            try:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer is one write: a replica that is killed has begun no answer that it does not end
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        time.sleep(self.server.seconds)
        model = body.get("model", "base")
        if model not in self.server.models:
            self._answer(404, {"error": {"message": f"The model `{model}` does not exist."}})
            return
        self.server.groups[self.headers.get("X-Stoker-Group", "")] += 1
        self._answer(200, {"model": model, "by": self.server.ip})

    def do_GET(self) -> None:
        self._answer(200, {"path": self.path, "by": self.server.ip})

    def _answer(self, status: int, data: Any) -> None:
        text = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class LoopbackFleet:
    """The chart's proxy over replicas that come and go.

    Attributes:
        url: the one URL.
        names: the name server.
        servers: the replicas, by address.
        ports: the port of this machine that stands for each of the pod's.
        folder: where its files are.
        objects: what the chart renders.
    """

    def __init__(
        self, caddy: Path, folder: Path, stack: ExitStack, settings: tuple[str, ...], refresh: str = "100ms"
    ) -> None:
        self._stack, self.names, self.folder = stack, Names(), folder
        stack.callback(self.names.close)
        self.servers: dict[str, Server] = {}
        pod_ports = (8080, 8082, 8084, 8090)
        self.ports = dict(zip(pod_ports, free_ports(len(pod_ports)), strict=True))
        self.objects = render(VLLM_SERVING, [VALUES], [*settings])
        text = fleet_file(self.objects)
        resolvers = f"resolvers 127.0.0.1:{self.names.port}"
        assert text.count("refresh 1s\n") == 1
        text = text.replace("refresh 1s\n", f"refresh {refresh}\n\t\t\t{resolvers}\n")
        text = text.replace("port 8090", f"port {self.ports[8090]}").replace("/keys", str(folder / "keys"))
        for port, mine in self.ports.items():
            text = text.replace(f":{port}", f":{mine}")
        file, log_file = folder / "Caddyfile", folder / "log"
        file.write_text(text)
        command = [str(caddy), "run", "--config", str(file), "--adapter", "caddyfile"]
        with log_file.open("wb") as log:
            process = subprocess.Popen(command, stderr=log)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        self.url = f"http://127.0.0.1:{self.ports[8080]}"
        until_it_answers(f"http://127.0.0.1:{self.ports[8082]}/proxy/health", process, log_file)

    def start(self, count: int = 1, **told: Any) -> list[Server]:
        """Start replicas, and list them."""
        made = []
        for _ in range(count):
            ip = f"127.0.0.{len(self.servers) + 2}"
            server = Server(ip, self.ports[8090])
            for name, value in told.items():
                setattr(server, name, value)
            self.servers[ip] = server
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            self._stack.callback(server.server_close)
            self.names.listed.append(ip)
            made.append(server)
        return made

    def ask(
        self, path: str = "/v1/completions", body: Any = None, headers: Mapping[str, str] = {}, port: int = 8080
    ) -> tuple[int, Any]:
        """Return status and answer of a request."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[port]}{path}", data, dict(headers))
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode()


def until_it_answers(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a proxy that was just started answers; show its log if it does not."""
    deadline = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)


def fleet_file(objects: list[Manifest]) -> str:
    """Return the configuration of the one URL's proxy."""
    (pod,) = (
        item["spec"]["template"]
        for item in objects
        if item["kind"] == "Deployment" and item["metadata"]["name"].endswith("-fleet")
    )
    return str(pod["metadata"]["annotations"]["stoker.dev/Caddyfile"])


@contextmanager
def fleets(caddy: Path, folder: Path) -> Iterator[Callable[..., LoopbackFleet]]:
    """Start the one URL of a release with further values."""
    with ExitStack() as stack:
        yield lambda *settings: LoopbackFleet(caddy, folder, stack, settings)
