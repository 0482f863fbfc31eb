"""An engine that uses a device as vLLM would: `… PORT FILE`. FILE gets a line for each request, with begin and end.

It serves one request after the other from the moment it starts, unless it is paused or asleep.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

REQUEST_SECONDS = 0.005


class Work:
    """Requests without end, while they may be served."""

    def __init__(self, path: Path) -> None:
        self.stream = path.open("a", buffering=1)
        self.lock = threading.Lock()  # held while a request uses the device
        self.paused = False

    def serve(self) -> None:
        """Serve for ever."""
        while True:
            with self.lock:
                if not self.paused:
                    begin = time.clock_gettime(time.CLOCK_BOOTTIME)
                    # A line of its own at the begin: an engine that is killed ends no request.
                    self.stream.write(json.dumps({"pid": os.getpid(), "begin": begin}) + "\n")
                    time.sleep(REQUEST_SECONDS)
                    end = time.clock_gettime(time.CLOCK_BOOTTIME)
                    self.stream.write(json.dumps({"pid": os.getpid(), "begin": begin, "end": end}) + "\n")
            time.sleep(REQUEST_SECONDS / 5)

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
            "/load": {"server_load": 1},
        }
        self._answer(known[self.path])

    def do_POST(self) -> None:
        """Pause or go on."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.work.pause(self.path.partition("?")[0] in ("/pause", "/sleep"))
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
