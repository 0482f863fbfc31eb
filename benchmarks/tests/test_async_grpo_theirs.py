"""TRL's own asynchronous trainer takes its steps on a CPU, run after run on one server, as the row `trl` needs it.

The server is made up: what is asked of vLLM, and what vLLM refuses.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from benchmarks.async_grpo_runs import Size, Theirs
from runner.tests.integration.environments import environment, made_once
from runner.tests.json_answers import JsonAnswers, serving

ROOT = Path(__file__).resolve().parents[2]
SIZE = Size(steps=4, groups=2, samples=2, staleness=1)
INFO = {"lora_config": {"max_lora_rank": 16, "max_loras": 3}, "parallel_config": {"data_parallel_size": 1}}
# Tokens of the example's model: its digits follow two others.
END, ZERO = 1, 2

pytestmark = pytest.mark.full  # two runs, each with a child that imports torch


class MadeUp(JsonAnswers, BaseHTTPRequestHandler):
    """Answers as vLLM does, with random digits."""

    protocol_version = "HTTP/1.1"
    loaded: dict[str, str]
    # Every adapter that was ever loaded.
    seen: list[str]

    def do_GET(self) -> None:
        """Say what is served."""
        self.answer({"vllm_config": INFO} if self.path.startswith("/server_info") else {})

    def do_POST(self) -> None:
        """Complete, or load and unload an adapter."""
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked: dict[str, Any] = json.loads(text) if text else {}
        name = asked.get("lora_name", "")
        if self.path == "/v1/completions":
            known = asked["model"] in self.loaded
            self.answer({"choices": [_choice(asked["prompt"])]} if known else {}, 200 if known else 404)
        elif self.path == "/v1/load_lora_adapter":
            good = name not in self.seen and Path(asked["lora_path"], "adapter_config.json").exists()
            self.loaded[name] = asked["lora_path"]
            self.seen.append(name)
            self.answer({}, 200 if good else 400)
        else:
            self.loaded.pop(name, None)
            self.answer({})


def _choice(prompt: list[int]) -> dict[str, Any]:
    """Return an answer to a sum, right or wrong."""
    first, second = (token - ZERO for token in prompt[::2])
    answer = first + second + random.choice((0, 1))
    ids = [*(int(digit) + ZERO for digit in str(answer)), END]
    return {"token_ids": ids, "logprobs": {"token_logprobs": [-0.7] * len(ids)}}


@contextmanager
def made_up() -> Iterator[str]:
    """Have the server, and give its address."""
    MadeUp.loaded, MadeUp.seen = {}, []
    with serving(MadeUp) as url:
        yield url


def test_trls_trainer_trains_run_after_run_on_one_server(tmp_path: Path) -> None:
    python, vllm = environment("trl", runner=False), environment("vllm", runner=False).parents[1]
    script = ROOT / "examples" / "async-grpo" / "adding_model.py"
    inputs = made_once("trl", python, script, "--steps", "4", "--output")
    theirs = Theirs(python, inputs, vllm, tmp_path / "runs", patience=600)
    with made_up() as address:
        for seed in (1, 2):
            found = theirs.run(SIZE, address, seed)
            assert found.seconds is not None, found
            assert len(found.run.steps) == SIZE.steps
            assert found.reward is not None
            assert 0 < found.reward < 1, "some answers are right, and some are wrong"
            assert found.staleness is not None
            assert found.staleness <= SIZE.staleness + 1
    # The first version is published before the first step.
    names = [f"theirs-{seed}-v{version}" for seed in (1, 2) for version in range(1, SIZE.steps + 2)]
    assert MadeUp.seen == names
    assert MadeUp.loaded == {}
