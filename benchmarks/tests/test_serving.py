"""The serving benchmark refuses wrong arguments, and says what is wrong with kubectl or the release."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from benchmarks import serving

PROGRAM = Path(serving.__file__)
NAMED = ("--namespace", "models", "--release", "chat")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (NAMED[:2], "the following arguments are required: --release"),
        ((*NAMED, "--pairs", "-1"), "argument --pairs: must be a whole number, 0 or more: '-1'"),
        ((*NAMED, "--requests", "0"), "argument --requests: must be a whole number, 1 or more: '0'"),
        ((*NAMED, "--concurrency", "0"), "argument --concurrency: must be a whole number, 1 or more: '0'"),
        ((*NAMED, "--replicas", "1", "0"), "argument --replicas: must be a whole number, 1 or more: '0'"),
        ((*NAMED, "--publisher", "client"), "--publisher needs --run and --folder"),
    ],
)
def test_wrong_arguments_are_refused_at_once(words: Sequence[str], problem: str, refusal: Callable[..., str]) -> None:
    assert refusal(serving.main, *words) == problem


def measure(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), *NAMED]
    return subprocess.run(command, env={**os.environ, "PATH": str(path)}, check=False, capture_output=True, text=True)


def test_a_missing_kubectl_is_named(tmp_path: Path) -> None:
    ended = measure(tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[1:] == [
        "serving.py: error: kubectl is missing: install it, and point it at the release's cluster"
    ]


def test_a_release_that_is_not_there_ends_with_kubectls_word(tmp_path: Path) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text("#!/bin/sh\necho 'deployment not found' >&2\nexit 1\n")
    kubectl.chmod(0o755)
    ended = measure(tmp_path)
    assert ended.returncode == 1
    _, kubectls, ours = ended.stderr.splitlines()
    assert kubectls == "deployment not found"
    assert ours == (
        "serving.py: error: kubectl scale ended with 1, its message is above: "
        "check namespace 'models' and release 'chat'"
    )


class Model(BaseHTTPRequestHandler):
    """Answers as a streaming server does."""

    def do_POST(self) -> None:
        """Send two tokens."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["stream"] is True
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"data: one\n\ndata: two\n\n")

    def log_message(self, *_: object) -> None:
        """Be silent."""


@pytest.fixture
def model() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_what_runs_in_the_pod_needs_nothing_but_its_text(model: str) -> None:
    order = {"urls": [model], "key": "", "model": "chat", "requests": 3, "concurrency": 2, "tokens": 2}
    command = [sys.executable, "-I", "-c", serving.PROGRAM.read_text(), "ask"]
    asked = subprocess.run(command, input=json.dumps(order), check=True, capture_output=True, text=True)
    load = serving.Load(**json.loads(asked.stdout))
    assert len(load.first_token) == len(load.request) == 3
    assert load.tokens_per_second > 0
    assert str(load).endswith(" tokens/s")
