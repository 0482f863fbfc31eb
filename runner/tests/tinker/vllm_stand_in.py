"""A stand-in for vLLM at the edge: it serves every version in a folder, and all its tokens are as likely."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from runner.tests.json_answers import JsonAnswers

BASE = "base"
CHOICES = range(10, 18)


class StandIn(ThreadingHTTPServer):
    """Records what it is asked.

    Args:
        folder: of published versions.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.watches = False  # it has a watcher, and serves what that was told of alone
        self.told: set[str] = set()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def names(self) -> dict[str, Path]:
        """Return the versions by their names in requests."""
        found = (path.parent for path in self.folder.glob("*/*/stoker.json") if not path.parent.name.startswith("."))
        there = {f"{path.parent.name}:{path.name}": path for path in found}
        return {name: path for name, path in there.items() if not self.watches or name in self.told}


@contextmanager
def serving(folder: Path) -> Iterator[StandIn]:
    """Serve until the block ends."""
    with StandIn(folder) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


class _Handler(JsonAnswers, BaseHTTPRequestHandler):
    server: StandIn

    def do_GET(self) -> None:
        """List the models."""
        cards = [{"id": BASE, "root": "/model", "parent": None}]
        cards += [{"id": name, "root": str(path), "parent": BASE} for name, path in self.server.names().items()]
        self.answer({"data": cards})

    def do_POST(self) -> None:
        """Answer."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/look":
            self.server.told |= {*body["published"]} if self.server.watches else set()
            self.answer({}, 200 if self.server.watches else 404)
            return
        self.server.requests.append(body)
        self.server.keys.add(self.headers.get("Authorization", ""))
        if body["model"] not in {BASE, *self.server.names()}:
            self.answer({"error": {"message": f"The model `{body['model']}` does not exist."}}, 404)
            return
        chance = random.Random(body.get("seed"))
        even = -math.log(len(CHOICES))
        choices: list[dict[str, Any]] = []
        for _ in range(body["n"]):
            tokens = [chance.choice(CHOICES) for _ in range(body["max_tokens"])]
            logprobs = {"token_logprobs": [even] * len(tokens)}
            choices.append({"token_ids": tokens, "logprobs": logprobs, "finish_reason": "length"})
        if "prompt_logprobs" in body:
            later = [{str(token): {"logprob": -1.5}} for token in body["prompt"][1:]]
            choices[0]["prompt_logprobs"] = [None, *later]
        self.answer({"model": body["model"], "choices": choices})
