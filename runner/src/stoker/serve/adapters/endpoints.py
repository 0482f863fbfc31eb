"""The HTTP endpoints of the watch: readiness, adapters and metrics of one replica."""

from __future__ import annotations

import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from stoker.serve.adapters.state import State


class Endpoints(ThreadingHTTPServer):
    """A web server that shows the newest state, on IPv6 and IPv4 alike where the machine has both.

    Args:
        listen: host and port.
        state: returns the newest state.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(self, listen: tuple[str, int], state: Callable[[], State]) -> None:
        host, port = listen
        if ":" in host or (not host and socket.has_dualstack_ipv6()):
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _handler(state))

    def server_bind(self) -> None:
        """Bind the socket for both families."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


def _handler(newest: Callable[[], State]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers probes, Prometheus and people."""

        def do_GET(self) -> None:
            state = newest()
            answers = {
                "/healthz": (200, "text/plain", "ok\n"),
                "/readyz": (200 if state.ready else 503, "application/json", state.to_json()),
                "/adapters": (200, "application/json", state.to_json()),
                "/metrics": (200, "text/plain; version=0.0.4", state.metrics()),
            }
            code, kind, text = answers.get(self.path, (404, "text/plain", "no such path\n"))
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing: a probe comes every second."""

    return Handler
