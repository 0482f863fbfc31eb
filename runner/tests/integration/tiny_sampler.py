"""A sampler in one process, which answers as vLLM and the watcher behind their proxy do: `… MODEL ADAPTERS`.

It prints its port, which may be given: `… MODEL ADAPTERS PORT FILE`. The file then gets a line with the name of the
policy for each answer. With STOKER_SAMPLERS_API_KEY it answers only who sends that. Runs in an environment with the
trainers.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from runner.tests.integration.rollout_fakes import TinyFleet
from runner.tests.json_answers import JsonAnswers
from transformers import AutoTokenizer

from stoker.serve.adapters.files import read_base_model

BASE = "base"


class Handler(JsonAnswers, BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    fleet: TinyFleet
    adapters: Path
    key: str
    loaded: dict[str, int]
    fingerprint: str
    answered: Path | None = None

    def do_GET(self) -> None:
        """Say what is served."""
        if self._closed():
            return
        if self.path == "/v1/models":
            self.answer({"data": [{"id": BASE, "parent": None, "max_model_len": 128}]})
        else:
            self._look()
            self._shown()

    def do_POST(self) -> None:
        """Complete a prompt, or look for versions."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._closed():
            return
        if self.path == "/look":
            for name in asked["published"]:
                run, _, number = name.partition(":")
                if name not in self.loaded and (folder := self.adapters / run / number).exists():
                    self.fleet.take(int(number), folder)
                    self.loaded[name] = int(number)
            self._shown(sees=(self.adapters / asked.get("folder", "")).is_dir())
            return
        version = 0 if asked["model"] == BASE else self.loaded[asked["model"]]
        ids, logprobs = self.fleet.complete(
            version, asked["prompt"], asked["max_tokens"], asked["temperature"], asked.get("seed")
        )
        if self.answered is not None:
            with self.answered.open("a") as stream:
                stream.write(f"{asked['model']}\n")
        choice = {"finish_reason": "length", "token_ids": ids, "logprobs": {"token_logprobs": logprobs}}
        self.answer({"model": asked["model"], "choices": [choice]})

    def _look(self) -> None:
        """Take the versions that lie in the folder, as a watcher does by itself."""
        for folder in self.adapters.glob("*/[0-9]*"):
            name = f"{folder.parent.name}:{folder.name}"
            if name not in self.loaded:
                with suppress(OSError, ValueError):  # it is retracted in this moment
                    self.fleet.take(int(folder.name), folder)
                    self.loaded[name] = int(folder.name)

    def _closed(self) -> bool:
        """Refuse who does not send the key."""
        if not self.key or self.headers.get("Authorization") == f"Bearer {self.key}":
            return False
        self.answer({"error": {"message": "The API key is missing or wrong."}}, 401)
        return True

    def _shown(self, **more: bool) -> None:
        server = {"max_loras": 8, "max_rank": 16, "fingerprint": self.fingerprint}
        self.answer({"ready": True, "loaded": sorted(self.loaded), "problems": {}, "server": server, **more})


class Server(ThreadingHTTPServer):
    """Takes as many new connections at once as vLLM does, on a machine that is busy too."""

    request_queue_size = 2048


if __name__ == "__main__":
    torch.set_num_threads(1)
    model, adapters, *more = sys.argv[1:]
    port = int(more[0]) if more else 0
    Handler.answered = Path(more[1]) if more else None
    Handler.fleet = TinyFleet(model, AutoTokenizer.from_pretrained(model), 1)
    Handler.adapters, Handler.loaded = Path(adapters), {}
    Handler.fingerprint = read_base_model(Path(model)).fingerprint
    Handler.key = os.environ.get("STOKER_SAMPLERS_API_KEY", "")
    server = Server(("127.0.0.1", port), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
