"""An engine that uses a device as vLLM would: `… PORT FILE LOAD READ`. FILE gets a line per request: begin and end.

It serves one request after the other from the moment it starts, unless it is paused or asleep. Its workers load
weights, which uses the device too and has a line of its own. A line is `torn` if weights were not whole then. LOAD is
how many requests it says that it has, READ how many seconds its workers take to read a version.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from device_journal import DeviceJournal  # type: ignore[import-not-found]  # it lies beside this file when it runs

REQUEST_SECONDS, LOAD_SECONDS = 0.005, 0.1


class Work:
    """Requests without end, while they may be served."""

    def __init__(self, path: Path) -> None:
        self.journal = DeviceJournal(path)
        self.lock = threading.Lock()  # held while a request uses the device
        self.paused = False
        self.has = self.staged = ""  # versions of the weights: what is served, and what was read
        self.whole = True
        self.read_at = 0.0  # when the workers have read what they were told to, by the monotonic clock

    def serve(self) -> None:
        """Serve for ever."""
        while True:
            with self.lock:
                if not self.paused:
                    self.use(REQUEST_SECONDS, lambda: not self.whole)
            time.sleep(REQUEST_SECONDS / 5)

    def use(self, seconds: float, torn: Callable[[], bool]) -> None:
        """Use the device."""
        with self.journal.use(has=self.has, torn=torn()) as line:
            time.sleep(seconds)
            line["torn"] = line["torn"] or torn()

    def workers(self, method: str, folders: Sequence[str] = (), name: str = "") -> dict[str, Any]:
        """Do what vLLM's workers do (`stoker.serve.weights.in_vllm`), beside requests if nobody has paused these."""
        if method == "stoker_stage":
            last = Path(folders[-1])
            self.staged = f"{last.parent.name}:{last.name[1:]}"
            self.read_at = time.monotonic() + float(sys.argv[4])
        elif method == "stoker_staged":
            return {"done": True, "name": self.staged} if time.monotonic() >= self.read_at else {"done": False}
        elif method == "stoker_restore" or (
            method == "stoker_swap" and name == self.staged and time.monotonic() >= self.read_at
        ):
            self.whole = False
            self.use(LOAD_SECONDS, lambda: not self.paused)
            self.whole = True
            if method == "stoker_swap":
                self.has, self.staged = self.staged, ""
        return {"name": self.has}

    def pause(self, paused: bool) -> None:
        """Pause after the request that is under way, or go on."""
        with self.lock:
            self.paused = paused


class Handler(BaseHTTPRequestHandler):
    """Answers what `stoker slice run` asks vLLM."""

    work: Work

    def do_GET(self) -> None:
        """Say what there is."""
        known: dict[str, Any] = {
            "/v1/models": {"data": [{"id": "base", "root": "/model", "parent": None}]},
            "/is_sleeping": {"is_sleeping": self.work.paused},
            "/load": {"server_load": int(sys.argv[3])},
        }
        self._answer(known[self.path])

    def do_POST(self) -> None:
        """Pause or go on, let the workers do something, or complete a text as soon as that may be."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/collective_rpc":
            self._answer({"results": [self.work.workers(body["method"], **body["kwargs"])]})
            return
        if self.path == "/v1/completions":
            while self.work.paused:
                time.sleep(REQUEST_SECONDS)
        elif self.path != "/wake_up?tags=weights":
            self.work.pause(self.path.partition("?")[0] in ("/pause", "/sleep"))
            self.work.whole &= not self.path.startswith("/sleep?level=2")
        self._answer({})

    def _answer(self, found: dict[str, Any]) -> None:
        text = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


if __name__ == "__main__":
    Handler.work = Work(Path(sys.argv[2]))
    threading.Thread(target=Handler.work.serve, daemon=True).start()
    ThreadingHTTPServer.allow_reuse_address = True
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
