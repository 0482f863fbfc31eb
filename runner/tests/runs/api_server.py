"""A stand-in for the Kubernetes API server, on loopback: it keeps objects, filters lists, refuses, and sends logs."""

from __future__ import annotations

import base64
import copy
import hashlib
import itertools
import json
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import PIPE, Popen
from tempfile import TemporaryFile
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import yaml

Object = dict[str, Any]

# The websocket protocol's own constant, and how much a frame carries here.
_WEBSOCKET = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_FRAME = 60_000
_PATH = re.compile(
    r"/(?:api|apis)/(?P<version>v1|[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[^/]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<part>[^/]+))?"
)


@dataclass
class Cluster:
    """What the stand-in holds.

    Attributes:
        objects: (plural, namespace, name) → object.
        kinds: plurals of the kinds that the cluster knows.
        logs: (pod, container) → what it has written.
        refusals: (method, plural) → status and body of the answer.
        requests: method and address of every request, in order.
        token: what a client must bring; empty if anybody may ask.
        claim: the folder that pods have at /claim; None if there is none.
        starts: whether a pod runs as soon as it is made.
        cuts: how many commands in pods break off after their first words.
    """

    objects: dict[tuple[str, str, str], Object] = field(default_factory=dict)
    kinds: set[str] = field(
        default_factory=lambda: {
            *("trainjobs", "jobsets", "jobs", "pods", "events", "persistentvolumeclaims", "resourcequotas"),
            *("services", "secrets", "configmaps", "deployments", "clustertrainingruntimes", "trainingruntimes"),
            "workloads",
        }
    )
    logs: dict[tuple[str, str], str] = field(default_factory=dict)
    refusals: dict[tuple[str, str], tuple[int, Object]] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    token: str = ""
    only_by_name: set[str] = field(default_factory=set)
    claim: Path | None = None
    starts: bool = True
    cuts: int = 0
    _changing: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, plural: str, *objects: Mapping[str, Any]) -> None:
        """Put objects into the cluster."""
        for found in objects:
            metadata = found["metadata"]
            self.objects[plural, metadata.get("namespace", "ml"), metadata["name"]] = copy.deepcopy(dict(found))

    def answer(self, method: str, address: str, body: Object | None) -> tuple[int, Object | str]:
        """Answer a request; text is a log."""
        split = urlsplit(address)
        query = {name: values[-1] for name, values in parse_qs(split.query).items()}
        found = _PATH.fullmatch(unquote(split.path))
        if not found or found["plural"] not in self.kinds:
            return _status(404, "the server could not find the requested resource", "NotFound")
        plural, namespace, name = found["plural"], found["namespace"], found["name"]
        part = f"{plural}/{found['part']}" if found["part"] else plural
        if (method, part) in self.refusals:
            return self.refusals[method, part]
        if method == "GET" and not name and plural in self.only_by_name:
            return forbidden("list", plural)
        if found["part"] == "log":
            return self._log(name, query)
        if method == "POST" and body is not None:
            return self._create(plural, namespace, body, dry="dryRun" in query)
        if plural.startswith("cluster") or plural == "nodes":
            namespace = "ml"  # where `add` puts what names no namespace
        if method == "GET" and not name:
            return 200, self._list(plural, namespace, query)
        key = (plural, namespace, name)
        if key not in self.objects:
            return _status(404, f'{plural} "{name}" not found', "NotFound", {"name": name, "kind": plural})
        if method == "PATCH":
            return self._patch(key, body or {})
        if method == "DELETE":
            return 200, self.objects.pop(key)
        return 200, self.objects[key]

    def _patch(self, key: tuple[str, str, str], body: Object) -> tuple[int, Object]:
        """Change an object; one that has a version is only changed by who knows the newest, if they name one."""
        with self._changing:
            there = self.objects[key]
            version = there["metadata"].get("resourceVersion")
            if version and (body.get("metadata") or {}).get("resourceVersion", version) != version:
                return _status(409, "the object has been modified", "Conflict", {"name": key[2], "kind": key[0]})
            self.objects[key] = _merged(there, body)
            if version:
                self.objects[key]["metadata"]["resourceVersion"] = str(int(version) + 1)
            return 200, self.objects[key]

    def _create(self, plural: str, namespace: str, body: Object, dry: bool) -> tuple[int, Object]:
        key = (plural, namespace, body["metadata"]["name"])
        if key in self.objects:
            return _status(409, f'{plural} "{key[2]}" already exists', "AlreadyExists", {"name": key[2]})
        made = _merged(body, {"metadata": {"namespace": namespace, "uid": f"uid-{key[2]}"}})
        if plural == "pods" and self.starts:
            made["status"] = {"phase": "Running"}
        if not dry:
            self.objects[key] = made
        return 201, made

    def _list(self, plural: str, namespace: str | None, query: Mapping[str, str]) -> Object:
        items = [
            {name: value for name, value in found.items() if name not in ("kind", "apiVersion")}
            for (kind, where, _), found in sorted(self.objects.items())
            if kind == plural
            and namespace in (None, where)
            and _selects(query.get("labelSelector", ""), found["metadata"].get("labels") or {})
            and all(_field(found, one) for one in query.get("fieldSelector", "").split(",") if one)
        ]
        start, size = int(query.get("continue", "0")), int(query.get("limit", "0")) or len(items)
        more = {"continue": str(start + size)} if start + size < len(items) else {}
        return {"apiVersion": "v1", "kind": "List", "metadata": more, "items": items[start : start + size]}

    def _log(self, pod: str, query: Mapping[str, str]) -> tuple[int, Object | str]:
        text = self.logs.get((pod, query.get("container", "")))
        if text is None:
            return _status(
                400, f'container "{query.get("container")}" in pod "{pod}" is waiting to start', "BadRequest"
            )
        lines = re.findall(r".*\n|.+", text)
        if since := query.get("sinceTime"):
            lines = [line for line in lines if line.partition(" ")[0] >= since]
        if tail := query.get("tailLines"):
            lines = lines[-int(tail) :]
        if "timestamps" not in query:
            lines = [line.partition(" ")[2] for line in lines]
        return 200, "".join(lines)


@contextmanager
def serving(cluster: Cluster, folder: Path, namespace: str = "ml") -> Iterator[Path]:
    """Serve a cluster until the end of the block, which is given the path of a kubeconfig."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # a kept connection waits 40 ms for each body otherwise

        def _any(self) -> None:
            if self.headers.get("Upgrade", "").lower() == "websocket":
                self._exec()
                return
            size = int(self.headers.get("Content-Length") or 0)
            text = self.rfile.read(size)
            cluster.requests.append((self.command, self.path))
            if cluster.token and self.headers.get("Authorization") != f"Bearer {cluster.token}":
                self._send(*_status(401, "Unauthorized", "Unauthorized"))
            else:
                self._send(*cluster.answer(self.command, self.path, json.loads(text) if text else None))

        do_GET = do_POST = do_PATCH = do_DELETE = _any  # noqa: N815 - the base class calls these names

        def _exec(self) -> None:
            """Run a command as a pod would, and send its output as frames of a websocket (v4.channel.k8s.io)."""
            cluster.requests.append(("EXEC", self.path))
            if refusal := cluster.refusals.get(("GET", "pods/exec")):
                self._send(*refusal)
                return
            self.close_connection = True
            key = base64.b64encode(hashlib.sha1(f"{self.headers['Sec-WebSocket-Key']}{_WEBSOCKET}".encode()).digest())
            self.send_response(101)
            for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade")):
                self.send_header(name, value)
            self.send_header("Sec-WebSocket-Accept", key.decode())
            self.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
            self.end_headers()
            words = parse_qs(urlsplit(self.path).query)["command"]
            local = [re.sub("^/claim", str(cluster.claim), word) for word in words]
            if cluster.cuts and (output := subprocess.run(local, check=False, capture_output=True).stdout):
                cluster.cuts -= 1
                self._frame(1, output[: len(output) // 2])
                return
            with TemporaryFile() as complaints, Popen(local, stdout=PIPE, stderr=complaints, bufsize=0) as process:
                assert process.stdout is not None
                while written := process.stdout.read(_FRAME):
                    self._frame(1, written)
                code = process.wait()
                complaints.seek(0)
                self._frame(2, complaints.read())
            causes = {"causes": [{"reason": "ExitCode", "message": str(code)}]}
            status = {"status": "Failure", "details": causes} if code else {"status": "Success"}
            self._frame(3, json.dumps(status).encode())
            self.wfile.write(b"\x88\x00")

        def _frame(self, channel: int, data: bytes) -> None:
            for start in range(0, len(data), _FRAME):
                part = bytes([channel]) + data[start : start + _FRAME]
                self.wfile.write(b"\x82\x7e" + len(part).to_bytes(2, "big") + part)

        def _send(self, status: int, body: Object | str) -> None:
            text = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield write_kubeconfig(folder, f"http://127.0.0.1:{server.server_port}", namespace, cluster.token)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def write_kubeconfig(folder: Path, server: str, namespace: str = "", token: str = "") -> Path:
    """Write a kubeconfig with one context, `test`, and return its path."""
    path = folder / "kubeconfig"
    context = {"cluster": "test", "user": "test", **({"namespace": namespace} if namespace else {})}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": server}}],
        "contexts": [{"name": "test", "context": context}],
        "users": [{"name": "test", "user": {"token": token} if token else {}}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


def forbidden(verb: str, resource: str, namespace: str = "ml") -> tuple[int, Object]:
    """Return the API server's answer to a user without a right."""
    said = f'{resource} is forbidden: User "ann" cannot {verb} resource "{resource}" in API group "" in the namespace'
    return _status(403, f'{said} "{namespace}"', "Forbidden")


def miss_second_look(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the second list of TrainJobs fail."""
    answer, looks = cluster.answer, itertools.count(1)

    def failing(method: str, address: str, body: Object | None) -> tuple[int, Object | str]:
        if "/trainjobs" in address and next(looks) == 2:
            return _status(503, "the server is shutting down", "ServiceUnavailable")
        return answer(method, address, body)

    monkeypatch.setattr(cluster, "answer", failing)


def _status(code: int, message: str, reason: str, details: Object | None = None) -> tuple[int, Object]:
    return code, {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "details": details or {},
        "code": code,
    }


def _merged(old: Object, new: Mapping[str, Any]) -> Object:
    """Return an object with a merge patch (RFC 7386) applied."""
    merged = copy.deepcopy(old)
    for name, value in new.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            inner = merged.get(name)
            merged[name] = _merged(inner if isinstance(inner, dict) else {}, value)
        else:
            merged[name] = value
    return merged


def _selects(selector: str, labels: Mapping[str, str]) -> bool:
    for one in filter(None, selector.split(",")):
        name, _, value = one.partition("=")
        wanted = not name.endswith("!")
        if ((labels.get(name.rstrip("!")) == value) if value or not wanted else name in labels) is not wanted:
            return False
    return True


def _field(found: Mapping[str, Any], one: str) -> bool:
    path, _, value = one.partition("=")
    inner: Any = found
    for name in path.split("."):
        inner = inner.get(name) if isinstance(inner, Mapping) else None
    return str(inner or "") == value
