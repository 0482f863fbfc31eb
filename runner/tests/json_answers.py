"""What stand-ins for servers share: answers in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from runner.tests import servers


class JsonAnswers(BaseHTTPRequestHandler):
    """Handles requests that are answered with JSON, and logs none. Beside it, name the base class for the linters."""

    disable_nagle_algorithm = True  # a kept connection waits 40 ms for each body otherwise

    def answer(self, content: Any, status: int = 200) -> None:
        """Send an answer."""
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve in a thread; yield the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with servers.serving(server):
        yield f"http://127.0.0.1:{server.server_port}"
