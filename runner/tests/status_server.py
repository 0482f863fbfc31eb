"""A stand-in for Trainer's status server."""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from runner.tests import servers


class StatusServer(HTTPServer):
    """Records what is posted, with the time, the token and its answer; answers as slowly and as badly as it is told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.posts: list[tuple[float, dict[str, Any]]] = []
        self.tokens: list[str] = []
        self.answers: list[int] = []
        self.answer = 200
        self.delay = 0.0


class _Handler(BaseHTTPRequestHandler):
    server: StatusServer

    def do_POST(self) -> None:
        """Record one update."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.posts.append((time.monotonic(), body))
        self.server.tokens.append(self.headers["Authorization"])
        time.sleep(self.server.delay)
        self.server.answers.append(self.server.answer)
        self.send_response(self.server.answers[-1])
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the test's output clean."""


def serving() -> AbstractContextManager[StatusServer]:
    """Serve until the end of the block."""
    return servers.serving(StatusServer())
