"""The endpoint's HTTP: keys, bodies and answers. What requests do is in :mod:`stoker.tinker.service`."""

from __future__ import annotations

import hmac
import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

from stoker.contract.words import say
from stoker.serve.web import WebServer
from stoker.tinker.bodies import read_body
from stoker.tinker.futures import JSON, PROTOBUF, Future
from stoker.tinker.refusals import RefusedError
from stoker.tinker.service import Service

_PREFIX = "/api/v1/"
_DRAIN_SECONDS = 2.0
_DRAIN_READS = 1024


class Endpoint(WebServer):
    """A web server that speaks with the client.

    Args:
        listen: host and port; an empty host means all addresses.
        service: what it serves.
        key: what every request must bring.

    Raises:
        OSError: it cannot listen there.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, listen: tuple[str, int], service: Service, key: str) -> None:
        super().__init__(listen, _handler(service, key.encode()))


def _handler(service: Service, key: bytes) -> type[BaseHTTPRequestHandler]:
    class ClientHandler(BaseHTTPRequestHandler):
        """Answers one client."""

        protocol_version = "HTTP/1.1"
        timeout = 60  # seconds for a client to send a request, or the next one
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            """Show what there is."""
            self._respond(lambda headers: service.show(self._path(headers)))

        def do_POST(self) -> None:
            """Do what is asked."""

            def work(headers: Mapping[str, str]) -> Future | Mapping[str, Any]:
                path = self._path(headers)
                body = read_body(headers, self.rfile)
                self.close_connection = "close" in headers.get("connection", "").lower()
                if headers.get("content-type", "").startswith(PROTOBUF):
                    return service.answer(path, body)
                try:
                    found = json.loads(body or b"{}")
                except (ValueError, RecursionError) as error:
                    raise RefusedError(f"the body is not JSON ({error}): send what the client sends") from error
                if not isinstance(found, dict):
                    raise RefusedError("the body is not a JSON object: send what the client sends")
                return service.answer(path, found)

            # A body that was refused is not read to its end, so what follows it is no request.
            self.close_connection = True
            self._respond(work)
            if self.close_connection:
                self._drain()

        def do_DELETE(self) -> None:
            """Refuse it."""
            self._refuse_method()

        def do_PUT(self) -> None:
            """Refuse it."""
            self._refuse_method()

        def do_PATCH(self) -> None:
            """Refuse it."""
            self._refuse_method()

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing per request."""

        def _refuse_method(self) -> None:
            """Refuse a method that changes what is there. After 501, http.server's own, the client repeats it."""

            def refuse(headers: Mapping[str, str]) -> None:
                self._path(headers)
                raise RefusedError(
                    f"{self.command} is not supported: to delete a checkpoint, delete its folder in output/checkpoints "
                    "of the run folder",
                    405,
                )

            self.close_connection = True  # a body is not read
            self._respond(refuse)
            self._drain()

        def _drain(self) -> None:
            """Read what a refused client still sends: closing before that would take the answer from it."""
            with suppress(OSError):
                self.wfile.flush()
                self.connection.settimeout(_DRAIN_SECONDS)
                self.connection.shutdown(socket.SHUT_WR)
                for _ in range(_DRAIN_READS):
                    if not self.connection.recv(2**16):
                        break

        def _path(self, headers: Mapping[str, str]) -> str:
            """Return what was asked for by somebody with the key."""
            path = self.path.partition("?")[0]
            given = headers.get("x-api-key", "") or headers.get("authorization", "").removeprefix("Bearer ")
            if path != f"{_PREFIX}healthz" and not hmac.compare_digest(given.encode("utf-8", "replace"), key):
                raise RefusedError("the key is wrong: set TINKER_API_KEY to the endpoint's key", 401)
            if not path.startswith(_PREFIX):
                raise RefusedError(f"{path} does not exist: set TINKER_BASE_URL to the endpoint without a path", 404)
            return path.removeprefix(_PREFIX)

        def _respond(self, work: Any) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                found = work(headers)
            except RefusedError as error:
                self._send(error.status, JSON, json.dumps({"error": error.message}).encode())
            except OSError:  # the client is gone
                self.close_connection = True
            except Exception as error:  # noqa: BLE001 - whatever one request does, the others go on
                say(f"{self.path} failed: {type(error).__name__}: {error}")
                message = f"the endpoint failed ({type(error).__name__}): look at its log"
                self._send(500, JSON, json.dumps({"error": message}).encode())
            else:
                if isinstance(found, Future) and self.path.endswith("/retrieve_future"):
                    self._send(200, found.kind, found.body)
                elif isinstance(found, Future):
                    # The client names what it samples by these; those of other requests it ignores.
                    names = [f"{found.request_id}:{index}" for index in range(found.answers)] or None
                    shown = {"request_id": found.request_id, "sample_sequence_ids": names}
                    self._send(200, JSON, json.dumps(shown).encode())
                else:
                    self._send(200, JSON, json.dumps(found).encode())

        def _send(self, status: int, kind: str, body: bytes) -> None:
            try:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                if status == 405:
                    self.send_header("Allow", "GET, POST")
                if self.close_connection:
                    self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                self.close_connection = True

    return ClientHandler
