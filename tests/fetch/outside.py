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
# For an expired certificate, which `openssl req` cannot make.
_AUTHORITY = """
[ca]
default_ca = own
[own]
database = {folder}/index
new_certs_dir = {folder}
serial = {folder}/serial
default_md = sha256
policy = any
copy_extensions = copy
[any]
commonName = supplied
"""


@dataclass(frozen=True)
class Certificate:
    """A certificate for a host and for loopback, which is its own authority.

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


def certified(folder: Path, name: str = STORE, days: tuple[str, str] | None = None) -> Certificate:
    """Make a certificate.

    Args:
        folder: where its files go.
        name: the host that has it.
        days: its first and its last moment, as YYMMDDHHMMSSZ; otherwise it is valid for a day.
    """
    made = Certificate(folder / "ca.crt", folder / "tls.key")
    subject = ["-subj", "/CN=authority of a test", "-addext", f"subjectAltName=DNS:{name},IP:127.0.0.1"]
    kind: list[str | Path] = ["-newkey", "rsa:2048", "-nodes", "-keyout", made.key]
    if days is None:
        _openssl("req", "-x509", "-days", "1", *kind, *subject, "-out", made.chain)
        return made
    (folder / "index").touch()
    (folder / "ca.cnf").write_text(_AUTHORITY.format(folder=folder))
    _openssl("req", *kind, *subject, "-out", folder / "request")
    authority: list[str | Path] = ["-selfsign", "-keyfile", made.key, "-config", folder / "ca.cnf", "-create_serial"]
    _openssl("ca", "-batch", "-notext", *authority, "-in", folder / "request", "-out", made.chain,
             "-startdate", days[0], "-enddate", days[1])  # fmt: skip
    return made


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


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
        with socket.create_connection(("127.0.0.1", self.store), timeout=120) as store, suppress(ConnectionError):
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
