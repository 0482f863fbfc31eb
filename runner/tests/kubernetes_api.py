"""A stand-in for the Kubernetes API, as far as the Kubeflow SDK asks it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from runner.tests.json_answers import JsonAnswers

GROUP = "/apis/trainer.kubeflow.org/v1alpha1"


@dataclass
class Api:
    """What the stand-in for the Kubernetes API holds."""

    runtimes: list[dict[str, Any]] = field(default_factory=list)
    submitted: list[dict[str, Any]] = field(default_factory=list)

    def get(self, path: str) -> tuple[int, dict[str, Any]]:
        """Answer a GET."""
        if path == f"{GROUP}/clustertrainingruntimes":
            return 200, {"apiVersion": "v1", "kind": "List", "metadata": {}, "items": self.runtimes}
        if path == f"{GROUP}/namespaces/ml/trainingruntimes":
            return 200, {"apiVersion": "v1", "kind": "List", "metadata": {}, "items": []}
        for found in self.runtimes:
            if path == f"{GROUP}/clustertrainingruntimes/{found['metadata']['name']}":
                return 200, found
        return 404, {"kind": "Status", "code": 404}


@contextmanager
def serving(api: Api) -> Iterator[dict[str, Any]]:
    """Serve until the end of the block, which is given a kubeconfig with the namespace `ml`."""

    class Handler(JsonAnswers, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, found = api.get(self.path.partition("?")[0])
            self.answer(found, status)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            api.submitted.append(body)
            self.answer(body, 201)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "ml"}}],
            "users": [{"name": "test", "user": {}}],
        }
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
