"""Receives what runs tell a webhook."""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from runner.tests.servers import serving

PATH = "/services/T0/B0/a-secret-of-the-team"


class Receiver(ThreadingHTTPServer):
    """Takes what is told, or answers as it is told to."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.told: list[dict[str, Any]] = []
        self.status, self.drip = 200, False

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}{PATH}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        assert self.path == PATH
        assert self.headers["Content-Type"] == "application/json"
        self.server.told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if self.server.drip:
            # Each byte comes in time for a timeout that counts from the byte before.
            for byte in b"HTTP/1.1 200 OK\r\n" + 600 * b"X: y\r\n":
                self.wfile.write(bytes([byte]))
                time.sleep(0.2)
        self.send_response(self.server.status)
        if self.server.status == 302:
            self.send_header("Location", "http://127.0.0.1:1/")
        self.end_headers()

    def do_GET(self) -> None:
        raise AssertionError("a redirect was followed")

    def log_message(self, *_: object) -> None:
        pass


def receiving() -> AbstractContextManager[Receiver]:
    """Receive until the end of the block."""
    return serving(Receiver())
