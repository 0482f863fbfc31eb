"""TRL's own asynchronous trainer trains against the one URL: the chart's proxy, a fleet's calls, and two real vLLM."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from benchmarks.async_grpo_runs import RANK, Size, Theirs
from runner.tests.integration.environments import environment, made_once
from runner.tests.integration.fleet_replicas import Programs, Replica, ask

from charts.helm import ROOT
from charts.loopback_fleet import LoopbackFleet
from stoker.serve.fleet.control import Control
from stoker.serve.fleet.endpoints import Endpoints
from stoker.serve.fleet.log import Log
from stoker.serve.fleet.replicas import Replicas

pytestmark = pytest.mark.full  # two vLLM and a trainer on this machine

SIZE = Size(steps=10, groups=4, samples=4, staleness=2)
# As the proxy in a replica's pod: answers by vLLM, and what a fleet asks by the watcher.
REPLICA = """
{{
	admin off
}}
http://:{port} {{
	bind {ip}
	@watcher path /adapters /look
	handle @watcher {{
		reverse_proxy 127.0.0.1:{watch}
	}}
	handle {{
		reverse_proxy 127.0.0.1:{vllm}
	}}
}}
"""


@dataclass(frozen=True)
class OneUrl:
    """The one URL.

    Attributes:
        url: where it is.
        log: the fleet's states.
        replicas: what is behind it.
    """

    url: str
    log: Log
    replicas: list[Replica]


@pytest.fixture
def inputs() -> Path:
    """A model that adds, and its sums."""
    script = ROOT / "examples/async-grpo/adding_model.py"
    return made_once("trl", environment("trl", runner=False), script, "--steps", "100", "--output")


@pytest.fixture
def one_url(caddy: Path, inputs: Path, tmp_path: Path) -> Iterator[OneUrl]:
    """Two replicas behind it."""
    python = environment("vllm", runner=False)
    lora = {"maxRank": RANK, "maxLoras": SIZE.staleness + 2, "maxCpuLoras": 8, "requireManifest": False}
    with ExitStack() as stack:
        log = Log(tmp_path / "state")
        replicas = [
            Replica(python, tmp_path / f"replica-{number}", inputs / "model", log.folder, stack, lora)
            for number in range(2)
        ]
        fleet = LoopbackFleet(caddy, tmp_path, stack, ())
        ips = [f"127.0.0.{number + 2}" for number in range(2)]
        for ip, one in zip(ips, replicas, strict=True):
            file = tmp_path / f"{ip}.caddyfile"
            file.write_text(REPLICA.format(ip=ip, port=fleet.ports[8090], watch=one.watch, vllm=one.vllm))
            command: list[str | Path] = [caddy, "run", "--config", file, "--adapter", "caddyfile"]
            Programs(tmp_path, stack).start(f"proxy-{ip}", command)
        for one in replicas:
            one.await_ready()
        addresses = [f"{ip}:{fleet.ports[8090]}" for ip in ips]
        control = Control(log, Replicas(lambda: addresses, lambda: addresses, None), 60)
        calls = Endpoints(("127.0.0.1", fleet.ports[8084]), control, lambda path: Path(path).is_dir())
        stack.callback(calls.server_close)
        threading.Thread(target=calls.serve_forever, daemon=True).start()
        fleet.names.listed += ips
        yield OneUrl(fleet.url, log, replicas)
        calls.shutdown()


def test_trls_own_trainer_trains_against_it(one_url: OneUrl, inputs: Path, tmp_path: Path) -> None:
    vllm = environment("vllm", runner=False).parents[1]
    theirs = Theirs(environment("trl", runner=False), inputs, vllm, tmp_path / "runs", patience=600)
    found = theirs.run(SIZE, one_url.url, 1)
    assert found.seconds is not None, found
    assert len(found.run.steps) == SIZE.steps
    assert found.dropped is not None
    assert found.staleness is not None
    assert found.staleness <= SIZE.staleness + 1
    asked = [one.requests() for one in one_url.replicas]
    assert min(asked) > 0.2 * sum(asked), f"both replicas write: {asked}"
    newest, kept = one_url.log.newest()
    assert newest == kept
    # Each version is loaded and unloaded, and each publication pauses and resumes; a call is a state tried and kept.
    assert newest.generation >= 2 * 4 * SIZE.steps
    assert (newest.paused, newest.adapters) == (False, {})
    for one in one_url.replicas:
        served = [card["id"] for card in ask(one.vllm, "/v1/models")[1]["data"]]
        assert served == ["base"], "nothing is left"
