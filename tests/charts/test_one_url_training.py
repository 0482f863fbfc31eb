"""TRL's own asynchronous trainer trains against the one URL: the chart's proxy, a fleet's calls, and two real vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.async_grpo_runs import RANK, Size, Theirs
from runner.tests.integration.environments import environment, made_once
from runner.tests.integration.fleet_replicas import ask

from charts.helm import ROOT
from charts.one_url import OneUrl, one_url

pytestmark = pytest.mark.full  # two vLLM and a trainer on this machine

SIZE = Size(steps=10, groups=4, samples=4, staleness=2)


@pytest.fixture
def inputs() -> Path:
    """A model that adds, and its sums."""
    script = ROOT / "examples/async-grpo/adding_model.py"
    return made_once("trl", environment("trl", runner=False), script, "--steps", "100", "--output")


@pytest.fixture
def url(caddy: Path, inputs: Path, tmp_path: Path) -> Iterator[OneUrl]:
    """Two replicas behind it."""
    lora = {"maxRank": RANK, "maxLoras": SIZE.staleness + 2, "maxCpuLoras": 8, "requireManifest": False}
    with one_url(caddy, environment("vllm", runner=False), inputs / "model", tmp_path, lora=lora) as found:
        yield found


def test_trls_own_trainer_trains_against_it(url: OneUrl, inputs: Path, tmp_path: Path) -> None:
    vllm = environment("vllm", runner=False).parents[1]
    theirs = Theirs(environment("trl", runner=False), inputs, vllm, tmp_path / "runs", patience=600)
    found = theirs.run(SIZE, url.url, 1)
    assert found.seconds is not None, found
    assert len(found.run.steps) == SIZE.steps
    assert found.dropped is not None
    assert found.staleness is not None
    assert found.staleness <= SIZE.staleness + 1
    asked = [one.requests() for one in url.replicas]
    assert min(asked) > 0.2 * sum(asked), f"both replicas write: {asked}"
    newest, kept = url.log.newest()
    assert newest == kept
    # Each version is loaded and unloaded, and each publication pauses and resumes; a call is a state tried and kept.
    assert newest.generation >= 2 * 4 * SIZE.steps
    assert (newest.paused, newest.adapters) == (False, {})
    for one in url.replicas:
        served = [card["id"] for card in ask(one.vllm, "/v1/models")[1]["data"]]
        assert served == ["base"], "nothing is left"
