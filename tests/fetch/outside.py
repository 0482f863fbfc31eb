"""The way out of a closed network: a proxy that opens tunnels, and a certificate that no public authority signed."""

from __future__ import annotations

import select
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from runner.tests.servers import serving

# A name that no resolver knows.
STORE = "store.invalid"


@dataclass(frozen=True)
class Certificate:
    """A certificate for STORE and for loopback, which is its own authority.

    Attributes:
        chain: the file with it.
        key: the file with its key.
    """

    chain: Path
    key: Path

    def tls(self) -> ssl.SSLContext:
        """Return what a server speaks TLS with."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.chain, self.key)
        return context


def certified(folder: Path) -> Certificate:
    """Make a certificate, valid for a day."""
    made = Certificate(folder / "ca.crt", folder / "tls.key")
    subject = ["-subj", "/CN=authority of a test", "-addext", f"subjectAltName=DNS:{STORE},IP:127.0.0.1"]
    files: list[str | Path] = ["-out", made.chain, "-keyout", made.key]
    kind = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    subprocess.run(["openssl", "req", *kind, *subject, *files], check=True, capture_output=True)
    return made


@dataclass
class Proxy:
    """A running proxy.

    Attributes:
        address: its address.
        asked: which hosts it was asked for, with their ports.
    """

    address: str = ""
    asked: set[str] = field(default_factory=set)


@contextmanager
def proxying(port: int) -> Iterator[Proxy]:
    """Serve a proxy whose tunnels all end at one port of loopback, whatever they are asked for."""
    proxy = Proxy()

    class Handler(_Handler):
        state, store = proxy, port

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy.address = f"http://127.0.0.1:{server.server_port}"
    with serving(server):
        yield proxy


class _Handler(BaseHTTPRequestHandler):
    state: Proxy
    store: int

    def do_CONNECT(self) -> None:
        self.state.asked.add(self.path)
        self.close_connection = True
        with socket.create_connection(("127.0.0.1", self.store), timeout=30) as store, suppress(ConnectionError):
            self.send_response(200)
            self.end_headers()
            other = {self.connection: store, store: self.connection}
            while ready := select.select([*other], [], [], 60)[0]:
                for end in ready:
                    data = end.recv(65536)
                    if not data:
                        return
                    other[end].sendall(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
