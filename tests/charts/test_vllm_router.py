"""vllm-router in front of replicas in place of the chart's proxy, as docs/guides/one-url.md says: the real router."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from images.builder import cache

from charts.helm import ROOT
from charts.loopback_fleet import Server
from stoker.cluster.processes import free_ports

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="vllm-router has no wheel for this platform"
    ),
]

PACKAGE = Path(__file__).with_name("vllm_router.txt")
PAIR = 2
# As its own command does, which also names the process and can do without the router.
START = """
import argparse
from vllm_router.router import Router
from vllm_router.router_args import RouterArgs

parser = argparse.ArgumentParser()
RouterArgs.add_cli_args(parser)
Router.from_args(RouterArgs.from_cli_args(parser.parse_args())).start()
"""


def installed() -> Path:
    """Return the folder of the package, fetched on the first use."""

    def build(folder: Path) -> None:
        words = ["--quiet", "--no-deps", "--require-hashes", "--target", str(folder), "--requirement", str(PACKAGE)]
        subprocess.run([sys.executable, "-m", "pip", "install", *words], check=True)

    return cache.entry(
        cache.root() / "tests" / f"vllm-router-{cache.digest([], [PACKAGE], ROOT)}", "vllm-router", build
    )


class Router:
    """The router over two replicas.

    Args:
        folder: gets its log.
        stack: ends everything.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        port, self._port, metrics = free_ports(3)
        self.servers = [Server(f"127.0.0.{number + 2}", port) for number in range(PAIR)]
        for server in self.servers:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            stack.callback(server.server_close)
        urls = [f"http://{server.ip}:{port}" for server in self.servers]
        self._log = folder / "log"
        log = stack.enter_context(self._log.open("wb"))
        ports = ["--host", "127.0.0.1", "--port", str(self._port), "--prometheus-port", str(metrics)]
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, "--policy", "cache_aware", *ports, "--worker-urls", *urls],
            env={**os.environ, "PYTHONPATH": str(installed())}, stdout=log, stderr=log,
        )  # fmt: skip
        stack.callback(self._process.wait)
        stack.callback(self._process.terminate)
        deadline = time.monotonic() + 120
        while self.ask("ready?")[0] != 200:
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.2)

    def ask(self, prompt: str, path: str = "/v1/completions") -> tuple[int, str]:
        """Return the status of a request, and who answered."""
        data = json.dumps({"model": "base", "prompt": prompt, "max_tokens": 1}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}", data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.load(answer)["by"]
        except urllib.error.HTTPError as error:
            return error.code, ""
        except OSError:
            return 0, ""


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    """The router."""
    with ExitStack() as stack:
        yield Router(tmp_path, stack)


def test_a_shared_prompt_stays_with_one_replica_and_load_is_shared_out(router: Router) -> None:
    for number in range(10):
        prompt = f"{number} is a question that many samples share"
        assert len({router.ask(prompt) for _ in range(4)}) == 1
    for server in router.servers:
        server.seconds = 0.05
    with ThreadPoolExecutor(64) as threads:
        answers = Counter(threads.map(router.ask, [f"{number}: another question" for number in range(300)]))
    assert {status for status, _ in answers} == {200}
    assert len(answers) == PAIR


def test_requests_go_on_at_the_other_replica_when_one_is_gone(router: Router) -> None:
    gone, left = router.servers
    gone.kill()
    answers = Counter(router.ask(f"{number} samples") for number in range(60))
    assert answers[200, left.ip] >= 50, "until the router has seen it, some requests fail: the chart's proxy fails none"
    assert router.ask("the last")[1] == left.ip


def test_a_call_that_changes_a_server_reaches_one_alone(router: Router) -> None:
    for server in router.servers:
        server.groups.clear()
    assert router.ask("", "/pause")[0] == 200
    assert sum(bool(server.groups) for server in router.servers) == 1
