"""The calls of vLLM's API that change a server, answered for a whole fleet, in the form in which vLLM answers."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from stoker.serve.adapters.files import adapter_written
from stoker.serve.fleet import desired
from stoker.serve.fleet.control import Call, Control
from stoker.serve.fleet.desired import CallRefusedError
from stoker.serve.fleet.weights import written

_BYTES = 64 * 2**10
_NOT_HERE = (
    "a fleet takes adapters, by /v1/load_lora_adapter, and whole weights, by /collective_rpc with the method "
    "reload_weights, from a folder of the shared claim. Weights over NCCL go from one trainer to one server: ask a "
    "release without fleet.enabled"
)
# What else changes a server, and cannot be done for many of them.
REFUSED = (
    "/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update",
    "/shutdown_weight_transfer_engine", "/update_weight_version",
)  # fmt: skip

Body = Mapping[str, Any]
Query = Mapping[str, str]


def calls(exists: Callable[[str], bool]) -> dict[str, Callable[[Body, Query], tuple[Call, Any]]]:
    """Return what makes a call of a request, and says what it is answered with, by path.

    Args:
        exists: returns whether a folder can be loaded, as far as this process sees it.
    """

    def load(body: Body, _: Query) -> tuple[Call, Any]:
        name, path = _text(body, "lora_name"), _text(body, "lora_path")
        if body.get("load_inplace"):
            raise CallRefusedError(400, "load_inplace: a name means one version here, so give new weights a new name")
        if not exists(path):
            raise CallRefusedError(
                400,
                f"lora_path {path!r} is not there: write the adapter to the claim that published.claim names, and name "
                "the folder as replicas see it, below /claims/CLAIM",
            )
        step = desired.load(name, path, adapter_written(Path(path)))
        return Call(f"load {name}", step), f"Success: LoRA adapter '{name}' added successfully."

    def unload(body: Body, _: Query) -> tuple[Call, Any]:
        name = _text(body, "lora_name")
        done = f"Success: LoRA adapter '{name}' removed successfully."
        return Call(f"unload {name}", desired.unload(name), anyway=True), done

    def pause(_: Body, query: Query) -> tuple[Call, Any]:
        if (mode := query.get("mode", "keep")) != "keep":
            raise CallRefusedError(
                400, f"mode={mode}: a fleet keeps requests under way until it resumes; use mode=keep"
            )
        return Call("pause", desired.pause), {"status": "paused"}

    def rpc(body: Body, _: Query) -> tuple[Call, Any]:
        method, kwargs = _text(body, "method"), body.get("kwargs") or {}
        if method != "reload_weights":
            raise CallRefusedError(501, f"method {method!r}: {_NOT_HERE}")
        if body.get("args") or not isinstance(kwargs, dict) or {*kwargs} - {"weights_path"}:
            raise CallRefusedError(
                400,
                'reload_weights: send {"kwargs": {"weights_path": FOLDER}}, or no kwargs for the model\'s own weights',
            )
        path = _text(kwargs, "weights_path") if kwargs else ""
        return Call(f"load the weights in {path or 'the model'}", _reload(path)), {"results": [None]}

    return {
        "/collective_rpc": rpc,
        "/v1/load_lora_adapter": load,
        "/v1/unload_lora_adapter": unload,
        "/pause": pause,
        "/resume": lambda *_: (Call("resume", desired.resume, anyway=True), {"status": "resumed"}),
        "/reset_prefix_cache": lambda *_: (Call("drop caches", desired.reset_cache), {"success": True}),
    }


def _reload(path: str) -> desired.Step:
    if not path:
        return desired.reload("", 0)
    try:
        return desired.reload(path, written(Path(path)))
    except (OSError, ValueError) as error:
        raise CallRefusedError(
            400,
            f"weights_path {path!r} has no weights ({error}): write the whole model to the claim that published.claim "
            "names, and name the folder as replicas see it, below /claims/CLAIM",
        ) from error


def _text(body: Body, key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not value or "\0" in value:
        raise CallRefusedError(400, f"{key} is missing: send JSON with {key} as a text")
    return value


class FleetServer(ThreadingHTTPServer):
    """A web server for the calls. Closing it waits until those under way are answered.

    Args:
        listen: host and port.
        control: does them.
        exists: returns whether a folder can be loaded.

    Raises:
        OSError: it cannot listen there.
    """

    daemon_threads = False

    def __init__(self, listen: tuple[str, int], control: Control, exists: Callable[[str], bool]) -> None:
        if ":" in listen[0]:
            self.address_family = socket.AF_INET6
        super().__init__(listen, _handler(control, exists))


def _handler(control: Control, exists: Callable[[str], bool]) -> type[BaseHTTPRequestHandler]:
    known = calls(exists)

    class CallHandler(BaseHTTPRequestHandler):
        """Answers trainers, probes and people."""

        timeout = 30  # seconds for a client to send its request

        def do_GET(self) -> None:
            shown: dict[str, Callable[[], Any]] = {
                "/healthz": lambda: "ok\n",
                "/readyz": control.readable,
                "/health": control.healthy,
                "/fleet": control.shown,
                "/is_paused": lambda: {"is_paused": control.paused()},
            }
            self._answered(shown.get(urlsplit(self.path).path, _nothing))

        def do_POST(self) -> None:
            self._answered(self._called)

        def _called(self) -> Any:
            url = urlsplit(self.path)
            body = self._body()
            if url.path in REFUSED:
                raise CallRefusedError(501, f"{url.path}: {_NOT_HERE}")
            make: Callable[[Body, Query], tuple[Call, Any]] = known.get(url.path, _nothing)
            call, answer = make(body, {name: values[-1] for name, values in parse_qs(url.query).items()})
            control.change(call)
            return answer

        def _body(self) -> Body:
            length = self.headers.get("Content-Length", "0")
            if "Transfer-Encoding" in self.headers or not length.isdecimal() or int(length) > _BYTES:
                raise CallRefusedError(413, f"send at most {_BYTES} bytes, with Content-Length")
            try:
                found = json.loads(self.rfile.read(int(length)) or b"{}")
            except (ValueError, RecursionError) as error:
                raise CallRefusedError(400, f"the body is not JSON: {error}") from error
            if not isinstance(found, dict):
                raise CallRefusedError(400, "the body is not a JSON object")
            return found

        def _answered(self, make: Callable[[], Any]) -> None:
            try:
                status, answer = 200, make()
            except CallRefusedError as error:
                status = error.status
                kind = "fleet_error" if status >= 500 else "invalid_request_error"
                answer = {"error": {"message": _message(error), "type": kind, "param": None, "code": status}}
                if error.replicas:
                    answer["replicas"] = error.replicas
            text = answer if isinstance(answer, str) else json.dumps(answer, indent=2) + "\n"
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(answer, str) else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing: what a call does is said, and the proxy logs requests."""

    return CallHandler


def _message(error: CallRefusedError) -> str:
    """Return the message, which names the replicas: clients show nothing else."""
    return "; ".join([str(error), *(f"{name}: {why}" for name, why in error.replicas.items())])


def _nothing(*_: object) -> Any:
    raise CallRefusedError(404, "there is no such path")
