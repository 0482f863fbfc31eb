"""A stand-in for the Lease API of Kubernetes, which compares versions as that does, and which can be told to fail."""

from __future__ import annotations

import copy
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from runner.tests.json_answers import JsonAnswers

TOKEN = "a-token"
PREFIX = "/apis/coordination.k8s.io/v1/namespaces/ml/leases/"


@dataclass
class LeaseApi:
    """What the API holds, and how it fails.

    Attributes:
        leases: by name.
        tokens: which it knows.
        forbidden: verbs that the account does not have.
        loss: share of answers that are lost after what was asked was done.
        calls: methods, as they came.
        words: by which `stoker slice run` finds it, once it serves.
    """

    leases: dict[str, dict[str, Any]] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=lambda: {TOKEN})
    forbidden: set[str] = field(default_factory=set)
    loss: float = 0.0
    calls: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    draw: random.Random = field(default_factory=lambda: random.Random(1))

    def make(self, name: str) -> None:
        """Make a Lease as `kubectl create` does."""
        self.leases[name] = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": "ml", "resourceVersion": "1", "uid": "1"},
            "spec": {},
        }

    def holder(self, name: str) -> str:
        """Return who holds a Lease."""
        with self.lock:
            return str(self.leases[name]["spec"].get("holderIdentity") or "")

    def answer(self, method: str, path: str, token: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        """Answer a request."""
        with self.lock:
            self.calls.append(method)
            name = path.removeprefix(PREFIX)
            if token not in self.tokens:
                return 401, {"kind": "Status", "message": "Unauthorized"}
            if method in self.forbidden:
                return 403, {"kind": "Status", "message": "forbidden"}
            if not path.startswith(PREFIX) or name not in self.leases:
                return 404, {"kind": "Status", "message": "not found"}
            before = self.leases[name]
            if body is None:
                return 200, copy.deepcopy(before)
            if body["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]:
                return 409, {"kind": "Status", "message": "the object has been modified"}
            spec = body["spec"]
            assert isinstance(spec.get("leaseDurationSeconds", 1), int)
            assert spec.get("leaseDurationSeconds", 1) > 0
            body["metadata"]["resourceVersion"] = str(int(before["metadata"]["resourceVersion"]) + 1)
            self.leases[name] = body
            return 200, copy.deepcopy(body)


@contextmanager
def serving(api: LeaseApi, account: Path) -> Iterator[list[str]]:
    """Serve until the end of the block, which is given the words by which `stoker slice run` finds it."""

    class Handler(JsonAnswers, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._ask(None)

        def do_PUT(self) -> None:
            self._ask(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _ask(self, body: dict[str, Any] | None) -> None:
            token = self.headers["Authorization"].removeprefix("Bearer ")
            status, found = api.answer(self.command, self.path, token, body)
            if api.draw.random() < api.loss:
                self.close_connection = True
                return
            self.answer(found, status)

        def handle(self) -> None:
            with suppress(OSError):  # the one who asked has given up
                super().handle()

    account.mkdir(exist_ok=True)
    (account / "token").write_text(TOKEN)
    (account / "namespace").write_text("ml")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        api.words = ["--api", f"http://127.0.0.1:{server.server_port}", "--account", str(account)]
        yield api.words
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
