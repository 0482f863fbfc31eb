"""A replica as the serving chart makes it, real vLLM: an adapter that a run left, and adapters that come and go."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from charts.helm import ROOT
from charts.serving_stack import KEY, Stack
from e2e.serving import client, inputs, reference

pytestmark = pytest.mark.full  # needs vLLM's and the trainer's environments on this machine

EXAMPLE = ROOT / "examples/sft-lora"
VALUES = (
    'accelerator="cpu"',
    'model={"name": "base", "claim": {"name": "models"}}',
    'adapters=[{"name": "first", "claim": "models", "path": "output"}]',
    'published={"claim": "published", "keep": 2}',
    'lora={"maxRank": 8, "maxLoras": 16, "maxCpuLoras": 16}',
    'api={"keySecret": "model-key"}',
    'args={"dtype": "float32", "max-model-len": "256", "max-num-seqs": "16", "enforce-eager": true}',
    'env={"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}',
)
"""Room for all adapters of the test at once: the image mends what vLLM 0.31 does on CPUs when there is none left."""
VERSIONS = 5


@pytest.fixture(scope="module")
def trainer() -> Path:
    """Folder of the trainer's programs, with this checkout's runner."""
    command = [str(ROOT / "images/trl/venv"), "--with-runner"]
    return Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()) / "bin"


@pytest.fixture(scope="module")
def stack(trainer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A replica that is ready, with a run's adapter."""
    folder = tmp_path_factory.mktemp("replica")
    source = tmp_path_factory.mktemp("source")
    for path in (EXAMPLE / "base_model.py", EXAMPLE / "data/elements.jsonl"):
        (source / path.name).write_text(path.read_text())
    environment = {**os.environ, "PATH": f"{trainer}:{os.environ['PATH']}"}
    subprocess.run([trainer / "python", inputs.__file__, source, folder], check=True, env=environment)
    running = Stack(folder, VALUES)
    try:
        running.start()
        yield running
    finally:
        running.stop()


def adapters(stack: Stack) -> dict[str, Any]:
    """Return what the replica says of its adapters."""
    found: dict[str, Any] = stack.get(f"{stack.url('adapters')}/adapters")[1]
    return found


def stoker(trainer: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `stoker adapters`."""
    return subprocess.run([trainer / "stoker", "adapters", *words], check=False, capture_output=True, text=True)


def test_base_and_adapter_say_what_peft_says_token_for_token(stack: Stack, trainer: Path) -> None:
    rows = [json.loads(line) for line in (EXAMPLE / "data/elements.jsonl").read_text().splitlines()]
    questions = [row["prompt"][0]["content"] for row in rows[::8]]
    words = [str(stack.folder / "model"), str(stack.folder / "output"), json.dumps(questions)]
    printed = subprocess.run(
        [str(trainer / "python"), reference.__file__, *words], check=True, stdout=subprocess.PIPE, text=True
    )
    peft = json.loads(printed.stdout.splitlines()[-1])

    def answer(model: str, question: str) -> list[int]:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": reference.TOKENS,
            "temperature": 0,
            "return_token_ids": True,
        }
        tokens: list[int] = stack.get(f"{stack.url('clients')}/v1/chat/completions", body)[1]["choices"][0]["token_ids"]
        return tokens

    with ThreadPoolExecutor(8) as pool:  # so that one batch holds both
        served = {
            name: dict(zip(questions, pool.map(answer, [model] * len(questions), questions), strict=True))
            for name, model in (("base", "base"), ("tuned", "first"))
        }
    assert served == peft
    assert served["base"] != served["tuned"]


def test_versions_are_served_while_requests_flow_and_old_ones_go(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    monkeypatch.setenv("API_KEY", KEY)
    monkeypatch.setattr(client, "STOP", tmp_path / "stop")
    url = stack.url("clients")
    with ThreadPoolExecutor() as pool:
        load = pool.submit(client.load, 0.2, 4, url, ["base", "first"])
        published = [
            client.publish(stack.folder / "output", stack.folder / "published/adapters", "policy", [url])
            for _ in range(VERSIONS)
        ]
        client.STOP.touch()
        came = load.result()
    seconds = [took for version in published for took in version["seconds"]]
    measured(
        f"published to served: median {statistics.median(seconds):.2f} s, maximum {max(seconds):.2f} s; "
        f"{came['requests']} requests meanwhile, {len(came['failures'])} failed"
    )
    assert [version["name"] for version in published] == [f"policy:{number + 1}" for number in range(VERSIONS)]
    assert came["requests"] > 0
    assert came["failures"] == []
    # One batch holds requests for the base model and for adapters: each is answered as if it were alone.
    assert all(len(texts) <= 1 for texts in came["said"].values())
    stack.until("the newest two", lambda: adapters(stack)["loaded"] == ["first", "policy:4", "policy:5"], 180)
    assert adapters(stack)["problems"] == {}


def test_wrong_adapters_are_reported_by_name_and_the_others_go_on(stack: Stack, trainer: Path) -> None:
    folder = stack.folder / "published/adapters"
    for name in ("no-effect", "other-base", "too-large"):
        assert stoker(trainer, "publish", stack.folder / "wrong" / name, folder, name).returncode == 0
    refused = stoker(trainer, "publish", stack.folder / "wrong/corrupt", folder, "corrupt")
    assert refused.returncode == 65
    assert "adapter_model.safetensors has changed since the run" in refused.stderr
    # Somebody who copies by hand is not stopped by the publisher, only by the server.
    copied = folder / "corrupt/.draft"
    copied.parent.mkdir()
    subprocess.run(["cp", "-r", stack.folder / "wrong/corrupt", copied], check=True)
    copied.rename(folder / "corrupt/1")
    wanted = {
        "corrupt:1": "has changed since the run: its checksum differs",
        "no-effect:1": "it has no effect",
        "other-base:1": "its matrices do not fit",
        "too-large:1": "its rank is 32, but the server takes at most 8: raise lora.maxRank",
    }
    stack.until("all to be reported", lambda: adapters(stack)["problems"].keys() == wanted.keys(), 180)
    problems = adapters(stack)["problems"]
    assert {name for name, text in wanted.items() if text not in problems[name]} == set(), problems
    metrics = stack.get(f"{stack.url('adapters')}/metrics")[1]
    assert all(f'name="{name}"}} 1' in metrics for name in wanted)

    def status(model: str) -> int:
        body = {"model": model, "prompt": "iron", "max_tokens": 1}
        return stack.get(f"{stack.url('clients')}/v1/completions", body)[0]

    assert {name: status(name) for name in ("base", "first", "policy:5")} == dict.fromkeys(
        ("base", "first", "policy:5"), 200
    )
    assert {status(name) for name in ("corrupt:1", "other-base:1", "too-large:1")} == {404}
    for name in ("corrupt", "no-effect", "other-base", "too-large"):
        assert stoker(trainer, "retract", folder, name, "1").returncode == 0
    stack.until("nothing wrong any more", lambda: adapters(stack)["problems"] == {}, 180)


def running(stack: Stack) -> int:
    """Return how many requests vLLM works on."""
    _, metrics = stack.get(f"{stack.url('vllm')}/metrics")
    (number,) = re.findall(r"^vllm:num_requests_running\{.*\} (.+)$", metrics, re.MULTILINE)
    return int(float(number))


def test_answers_that_were_begun_are_finished_when_the_server_is_told_to_stop(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test: the server has ended."""
    monkeypatch.setenv("API_KEY", KEY)
    url = stack.url("clients")
    # As many as the server works on at once: one or two it would have answered before anybody looks.
    streamed = [True, False] * 8
    with ThreadPoolExecutor(len(streamed)) as pool:
        answers = [
            pool.submit(client.ask, client.completion(url, "first", stream=stream, tokens=200)) for stream in streamed
        ]

        def begun() -> bool:
            """Whether the server works on those that it has not answered yet."""
            answered = sum(answer.done() for answer in answers)  # first: who is answered meanwhile counts once
            at_work = running(stack)
            return at_work > 0 and answered + at_work == len(streamed)

        stack.until("all to have begun", begun, 300, every=0.05)  # they take a second or two
        stack.terminate("vllm")
        assert [
            client.wrong(answer.result(), stream=stream) for answer, stream in zip(answers, streamed, strict=True)
        ] == [""] * len(streamed)
