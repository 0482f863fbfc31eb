"""A small web server: text and JSON for probes, Prometheus and people."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer

from stoker.contract.exits import ExitCode, RunError


class WebServer(ThreadingHTTPServer):
    """A web server on IPv6 and IPv4 alike where the machine has both.

    Args:
        listen: host and port; an empty host means all addresses.
        handler: answers requests.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(self, listen: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        host, port = listen
        if ":" in host or (not host and socket.has_dualstack_ipv6()):
            self.address_family = socket.AF_INET6
        super().__init__((host, port), handler)

    def server_bind(self) -> None:
        """Bind the socket for both families."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Not HTTPServer's own: it asks DNS for the name of this machine.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]


@contextmanager
def port_errors(host: str, port: int) -> Iterator[None]:
    """Say of a server that cannot listen what to do.

    Raises:
        RunError: the address is not this machine's, or the port is taken (78).
    """
    try:
        yield
    except OSError as error:
        raise RunError(
            ExitCode.CONFIG,
            f"cannot listen on port {port} of {host or 'this machine'} ({error.strerror}): give a --host of this "
            "machine and a free --port",
        ) from error


class Handler(BaseHTTPRequestHandler):
    """Answers whole texts."""

    timeout = 30  # seconds for a client to send its request

    def get(self) -> None:
        """Answer a GET."""
        self.answer(404, "text/plain", "no such path\n")

    def post(self) -> None:
        """Answer a POST."""
        self.answer(404, "text/plain", "no such path\n")

    def do_GET(self) -> None:
        """Answer a GET, by the name that http.server calls."""
        self.get()

    def do_POST(self) -> None:
        """Answer a POST, by the name that http.server calls."""
        self.post()

    def answer(self, code: int, kind: str, text: str) -> None:
        """Send an answer.

        Args:
            code: HTTP status.
            kind: content type.
            text: the body.
        """
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: a probe comes every second."""
