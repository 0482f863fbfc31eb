"""A stand-in for Google Cloud Storage: as much of its JSON API as its client uses to list and download objects.

Paths and fields are those of https://cloud.google.com/storage/docs/json_api/v1/objects.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from runner.tests.servers import serving as answering


@dataclass
class Store:
    """A running stand-in.

    Attributes:
        address: its address.
        objects: `BUCKET/NAME` → content.
        refuses: True if the account it is asked by may not read.
        errors: how many downloads are answered with 503 first.
        sent: bytes of content sent.
    """

    address: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    refuses: bool = False
    errors: int = 0
    sent: int = 0


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Store]:
    """Serve an empty store, by TLS if that is given."""
    store = Store()

    class Handler(_Handler):
        state = store

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    store.address = f"http://127.0.0.1:{server.server_port}"
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    with answering(server):
        yield store


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a kept connection waits 40 ms for each body otherwise
    state: Store

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        match = re.fullmatch(r"/(download/)?storage/v1/b/([^/]+)/o(?:/(.+))?", address.path)
        if self.state.refuses:
            self._error(403, "forbidden")
        elif match is None or match[2] not in {name.split("/")[0] for name in self.state.objects}:
            self._error(404, "notFound")
        elif match[3] is None:
            prefix = parse_qs(address.query).get("prefix", [""])[0]
            found = [name for name in sorted(self.state.objects) if name.startswith(f"{match[2]}/{prefix}")]
            self._json(200, {"kind": "storage#objects", "items": [self._metadata(name) for name in found]})
        else:
            self._object(f"{match[2]}/{unquote(match[3])}", bool(match[1]))

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _object(self, name: str, content: bool) -> None:
        if name not in self.state.objects:
            self._error(404, "notFound")
        elif not content:
            self._json(200, self._metadata(name))
        elif self.state.errors > 0:
            self.state.errors -= 1
            self._error(503, "backendError")
        else:
            self._content(self.state.objects[name])

    def _content(self, data: bytes) -> None:
        start, end = 0, len(data)
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end = int(match[1]), min(int(match[2]) + 1 if match[2] else end, end)
        self.state.sent += end - start
        self._send(206 if "Range" in self.headers else 200, data[start:end], "application/octet-stream")

    def _metadata(self, name: str) -> dict[str, str]:
        bucket, _, path = name.partition("/")
        data = self.state.objects[name]
        md5 = base64.b64encode(hashlib.md5(data).digest()).decode()
        return {
            "kind": "storage#object",
            "bucket": bucket,
            "name": path,
            "size": str(len(data)),
            "md5Hash": md5,
            "etag": md5,
            "generation": "1",
        }

    def _error(self, status: int, reason: str) -> None:
        self._json(status, {"error": {"code": status, "message": reason, "errors": [{"reason": reason}]}})

    def _json(self, status: int, document: object) -> None:
        self._send(status, json.dumps(document).encode(), "application/json")

    def _send(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
