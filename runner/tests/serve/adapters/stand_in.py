"""A server that refuses as vLLM 0.31 does, and a clock that the test moves."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

from stoker.serve.adapters.state import ReplicaState
from stoker.serve.adapters.watch import Watch

AnyVllm = TypeVar("AnyVllm", bound="Vllm")


class Vllm:
    """A server's models and adapters, and what it is told to fail at."""

    def __init__(self) -> None:
        self.adapters: dict[str, str] = {}
        self.invisible: set[str] = set()
        self.unloadable: set[str] = set()
        self.without_effect: set[str] = set()
        self.broken: set[str] = set()  # their probabilities are no numbers
        self.slow: set[str] = set()  # loaded, but the answer does not come in time
        self.mute: set[str] = set()  # loaded, and no request for them is answered
        self.longer: set[str] = set()  # their text has one token more
        self.routes = {"/v1/completions"}
        self.asked: list[str] = []
        self.down = False
        self.paused = False
        self.resets = 0  # how often its cache was dropped
        self.weights = self.staged = ""  # the folder that its workers have loaded, and that they have read
        self.swaps: list[bool] = []  # for each time that weights were loaded: whether it was paused
        self.unreadable: set[str] = set()  # folders that its workers cannot read
        self.reading: set[str] = set()  # folders that its workers take long to read
        self.stubborn: set[str] = set()  # paths that it refuses
        self.raw: dict[str, bytes] = {}  # path → what comes over the wire in the place of an answer
        self.address = ""
        self.counted: Counter[str] = Counter()  # requests by path
        self.gate = threading.Event()  # closed: completions wait, but for the model's own first answer
        self.gate_models = threading.Event()  # closed: the list of models waits
        for gate in (self.gate, self.gate_models):
            gate.set()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return the status and the answer to a request."""
        path = path.partition("?")[0]
        self.counted[path] += 1
        if path in self.stubborn:
            return 500, _error("it cannot")
        if path == "/v1/models":
            self.gate_models.wait(120)
        elif "prompt_logprobs" in body:
            self.gate.wait(120)
        if self.down:
            return 503, {}
        if path == "/is_paused":
            return 200, {"is_paused": self.paused}
        if path in ("/pause", "/resume"):
            self.paused = path == "/pause"
            return 200, {}
        if path == "/reset_prefix_cache":
            self.resets += 1
            return 200, {"success": True}
        if path == "/collective_rpc":
            return 200, {"results": [self._worker(body["method"], **body["kwargs"])]}
        name = body.get("lora_name", "")
        if path == "/v1/models":
            cards = [{"id": "tiny", "root": "/model", "parent": None}]
            return 200, {"data": cards + [{"id": n, "root": p, "parent": "tiny"} for n, p in self.adapters.items()]}
        if path == "/v1/load_lora_adapter":
            if name in self.adapters:
                return 400, _error(f"The lora adapter '{name}' has already been loaded.")
            if name in self.invisible:
                return 404, _error(f"Loading lora {name} failed: No adapter found")
            if name in self.unloadable:
                return 500, _error("Call to add_lora method failed")
            self.adapters[name] = body["lora_path"]
            return (0, "") if name in self.slow else (200, "Success")
        if path == "/v1/unload_lora_adapter":
            return (200, "Success") if self.adapters.pop(name, None) else (404, _error("cannot be found"))
        if path not in self.routes:
            return 404, {"detail": "Not Found"}
        self.asked.append(body["model"])
        if body["model"] in self.mute:
            return 500, _error("Out of range float values are not JSON compliant")
        differs = body["model"] in self.adapters and body["model"] not in self.without_effect
        logprob = float("nan") if body["model"] in self.broken else -1.5 if differs else -1.0
        tokens = [{"5": {"logprob": logprob}}] * (2 if body["model"] in self.longer else 1)
        return 200, {"choices": [{"prompt_logprobs": [None, *tokens]}]}

    def _worker(self, method: str, name: str = "", files: Sequence[str] = ()) -> dict[str, Any] | None:
        """Return what a worker returns, as the code does that it gets."""
        if method == "stoker_stage_model":
            assert bool(files) == bool(name)
            self.staged = name
            return None
        if method == "stoker_staged" and self.staged in self.reading:
            return {"done": False}
        if method == "stoker_staged":
            bad = self.staged in self.unreadable
            return {"done": True, "name": self.staged, **({"file": self.staged, "problem": "it is cut"} if bad else {})}
        if method == "stoker_swap" and name == self.staged:
            self.swaps.append(self.paused)
            self.weights = self.staged
        return {"name": self.weights}


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message}}


@contextmanager
def serving(found: AnyVllm) -> Iterator[AnyVllm]:
    """Serve on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            if self.path in found.raw:
                self.wfile.write(found.raw[self.path])
                return
            code, data = found.answer(self.path, json.loads(self.rfile.read(length) or b"{}"))
            if not code:  # the connection ends without an answer
                return
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(data).encode())

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def log_message(self, format: str, *args: object) -> None:
            pass

    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=web.serve_forever, args=(0.01,), daemon=True).start()
    found.address = f"http://127.0.0.1:{web.server_port}"
    yield found
    web.shutdown()
    web.server_close()


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def start_over(watch: Watch, vllm: Vllm) -> ReplicaState:
    """End the server, let the replica see it, and start it without its adapters; return what was seen."""
    vllm.down = True
    seen = watch.look()
    vllm.down, vllm.adapters = False, {}
    return seen
