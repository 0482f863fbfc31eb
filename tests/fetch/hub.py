"""A stand-in for Hugging Face Hub: as much of its HTTP API as its client uses to list and download a repository.

A pod runs this file alone (tests/e2e/test_notes.py), so it imports the standard library only.

Paths, headers and error codes are those of huggingface_hub 2.4 (`hf_api.py`, `file_download.py`, `utils/_http.py`).
"""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee00" * 5
# Larger files are kept in large file storage, whose checksum the hub tells; of others it tells Git's.
_LARGE = 10_000
_BLOCK = 65536


@dataclass
class Repository:
    """A repository and how it misbehaves.

    Attributes:
        files: path → content.
        commit: what every revision resolves to.
        token: the token that is needed to see it; None if it is public.
        gated: True if a token must have accepted its terms, which none has.
        cut: how many bytes of a large file are sent before the connection is closed, as often as `cuts` says.
        broken: how often a large file is sent with its last byte changed.
        errors: how many requests are answered with 503 first.
        seconds_per_block: how long each 64 KiB of a large file take.
        signed: True if large files are at a signed address on another host.
        expired: how often such an address has expired when it is asked.
    """

    files: dict[str, bytes]
    commit: str = COMMIT
    token: str | None = None
    gated: bool = False
    cut: int = 0
    cuts: int = 0
    broken: int = 0
    errors: int = 0
    seconds_per_block: float = 0.0
    signed: bool = False
    expired: int = 0


@dataclass
class Hub:
    """A running stand-in.

    Attributes:
        address: its address.
        repositories: `models/NAME` or `datasets/NAME` → repository.
        sent: bytes of file content sent, by path.
        requests: how many requests came.
        sending: how many files are being sent.
    """

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    sending: int = 0

    def forget_sent(self) -> None:
        """Count from nothing what is sent from now on, once nothing is on its way to a client that is gone."""
        deadline = time.monotonic() + 120
        while self.sending:
            assert time.monotonic() < deadline, "a file is still being sent"
            time.sleep(0.01)
        self.sent.clear()


@contextmanager
def serving(host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[Hub]:
    """Serve an empty hub, by TLS if that is given; port 0 is any that is free."""
    hub = Hub()

    class Handler(_Handler):
        state = hub

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    hub.address = f"http://{host}:{server.server_port}"
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a kept connection waits 40 ms for each body otherwise
    state: Hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _answer(self) -> None:
        self.state.requests += 1
        # Python's server takes two slashes at the start for one; the hub does not.
        if self.requestline.split()[1].startswith("//"):
            self._refuse(404, "")
            return
        path = unquote(urlsplit(self.path).path)
        for pattern, action in (
            (r"/api/(models|datasets)/(.+)/tree/([^/]+)", self._tree),
            (r"/api/(models|datasets)/(.+)/revision/([^/]+)", self._info),
            (r"/api/(models|datasets)/(.+)", self._info),
            (r"/(datasets/)?(.+)/resolve/([^/]+)/(.+)", self._file),
        ):
            if match := re.fullmatch(pattern, path):
                action(*match.groups())
                return
        self._refuse(404, "")

    def _repository(self, kind: str, name: str, revision: str = "main") -> Repository | None:
        found = self.state.repositories.get(f"{kind}/{name}")
        if found is not None and found.errors > 0:
            found.errors -= 1
            self._send(503, b"busy")
            return None
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if found is None or (found.token is not None and given != found.token):
            # The hub does not tell a private repository from one that does not exist.
            self._refuse(401, "RepoNotFound")
            return None
        if revision not in ("main", found.commit):
            self._refuse(404, "RevisionNotFound")
            return None
        return found

    def _info(self, kind: str, name: str, revision: str = "main") -> None:
        if found := self._repository(kind, name, revision):
            self._json({"id": name, "sha": found.commit, "private": False, "siblings": [], "tags": []})

    def _tree(self, kind: str, name: str, revision: str) -> None:
        if found := self._repository(kind, name, revision):
            self._json([_entry(path, data) for path, data in found.files.items()])

    def _file(self, kind: str | None, name: str, revision: str, path: str) -> None:
        found = self._repository("datasets" if kind else "models", name, revision)
        if found is None:
            return
        if found.gated:
            self._refuse(403, "GatedRepo")
            return
        data = found.files.get(path)
        if data is None:
            self._refuse(404, "EntryNotFound")
            return
        large = len(data) > _LARGE
        tag = hashlib.sha256(data).hexdigest() if large else _git(data)
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": found.commit, "Accept-Ranges": "bytes"}
        if large:
            headers |= {"X-Linked-Etag": f'"{tag}"', "X-Linked-Size": str(len(data))}
        if large and found.signed and self.command == "HEAD":
            port = urlsplit(self.state.address).port
            signed = f"http://localhost:{port}{self.path}?X-Amz-Signature=hunter2"
            self._send(302, b"", {**headers, "Location": signed})
            return
        if large and found.expired > 0 and self.command == "GET":
            found.expired -= 1
            self._send(403, b"Request has expired")
            return
        start = 0
        if match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            start = int(match[1])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self.send_response(206 if start else 200)
        for header, value in {**headers, "Content-Length": str(len(data) - start)}.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command == "GET":
            self.state.sending += 1
            try:
                self._content(found, path, data, start, large)
            finally:
                self.state.sending -= 1

    def _content(self, found: Repository, path: str, data: bytes, start: int, large: bool) -> None:
        if large and found.broken > 0:
            found.broken -= 1
            data = data[:-1] + bytes([data[-1] ^ 1])
        end = len(data)
        if large and found.cuts > 0:
            found.cuts -= 1
            end = min(end, start + found.cut)
            self.close_connection = True
        for at in range(start, end, _BLOCK):
            block = data[at : min(at + _BLOCK, end)]
            try:
                self.wfile.write(block)
            except OSError:  # the client was killed
                self.close_connection = True
                return
            self.state.sent[path] += len(block)
            if large:
                time.sleep(found.seconds_per_block)

    def _json(self, document: object) -> None:
        self._send(200, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code} if code else {})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for header, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _git(data: bytes) -> str:
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


def _entry(path: str, data: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "path": path, "size": len(data), "oid": _git(data)}
    if len(data) > _LARGE:
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return entry
