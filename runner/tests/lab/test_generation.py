"""Train and ask in one process with real vLLM, and ask a served policy by its address."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from runner.tests.json_answers import JsonAnswers, serving
from runner.tests.lab import scripts
from runner.tests.lab.scripts import failures
from runner.tests.lab.servers import VLLM, server

from stoker.cluster.processes import free_ports
from stoker.contract.exits import ExitCode
from stoker.lab import LabError, Policy
from stoker.lab.endpoint import KEY, EndpointClient
from stoker.lab.generation import starting, vllm_refusal
from stoker.lab.machine import quantization_problems

CASES = Path(__file__).with_name("generation_cases.py")
SEEDS = Path(__file__).with_name("seed_cases.py")
EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "lab").glob("*.py"))


@pytest.mark.full
@pytest.mark.parametrize("words", [(), ("shared",)], ids=["two copies", "one copy"])
def test_what_was_trained_answers(lab_python: Path, lab_inputs: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    failed = failures(lab_python, CASES, lab_inputs / "model", tmp_path, *words, told=VLLM)
    assert not failed, failed


@pytest.mark.full
def test_a_seed_decides_the_answer_to_a_long_prompt_too(lab_python: Path, lab_inputs: Path) -> None:
    failed = failures(lab_python, SEEDS, lab_inputs / "model", told=VLLM)
    assert not failed, failed


@pytest.mark.full
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, lab_python: Path, lab_inputs: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [lab_python, example, lab_inputs / "model"], check=False, capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, **VLLM},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    assert " steps; " in done.stdout


@pytest.mark.full
def test_a_served_policy_answers_by_its_address(lab_python: Path, lab_inputs: Path, tmp_path: Path) -> None:
    with server(lab_python, lab_inputs / "model", tmp_path) as url:
        policy = Policy(url=url)
        answers = policy.generate(["1+1=", [5, 6]], max_tokens=3, logprobs=0, n=2)
        assert [answer.prompt for answer in answers] == ["1+1=", "1+1=", [5, 6], [5, 6]]
        one, other = policy.generate(["1+1=", "1+1="], max_tokens=3, temperature=0)
        assert one == other
        assert all(len(answer.token_ids) == len(answer.logprobs or ()) > 0 for answer in answers)
        assert Policy(url=f"{url}/v1/", name="tiny").generate(["1+1="], max_tokens=1)
        with pytest.raises(LabError, match=r"404.*nothing"):
            Policy(url=url, name="nothing").generate(["1+1="])
        for name in ("train", "save_lora"):
            with pytest.raises(LabError, match="not in this process: write Policy"):
                getattr(policy, name)("rows")


def test_an_address_is_refused_or_does_not_answer() -> None:
    with pytest.raises(LabError, match="write the address of a server"):
        Policy(url="support:8000")
    (port,) = free_ports(1)
    with pytest.raises(LabError, match="does not answer") as caught:
        Policy(url=f"http://127.0.0.1:{port}").generate(["a"])
    assert caught.value.code is ExitCode.UNAVAILABLE


def test_prompts_are_asked_together_and_answered_in_their_order() -> None:
    together = threading.Barrier(3)
    done = {prompt: threading.Event() for prompt in ("a", "b", "[5, 6]")}
    before = {"a": "b", "b": "[5, 6]"}

    def serve(body: dict[str, Any]) -> tuple[int, Any]:
        """Answer when three requests are here, the last prompt first."""
        prompt = str(body["prompt"])
        if prompt == "wrong":
            return 400, {"error": "no"}
        together.wait(120)
        if prompt in before:
            assert done[before[prompt]].wait(120)
        done[prompt].set()
        return 200, {"choices": [{"text": f"{prompt}{number}", "finish_reason": "stop"} for number in range(body["n"])]}

    with answering(serve) as url:
        policy = Policy(url=url, name="x")
        answers = policy.generate(["a", "b", [5, 6]], n=2)
        assert [answer.text for answer in answers] == ["a0", "a1", "b0", "b1", "[5, 6]0", "[5, 6]1"]
        assert [answer.prompt for answer in answers] == ["a", "a", "b", "b", [5, 6], [5, 6]]
        with pytest.raises(LabError, match=r"answered 400"):
            policy.generate(["wrong"] * 40, n=2)


def test_a_server_samples_as_a_notebook_does() -> None:
    """And not as the generation_config.json of its model says."""
    seen: list[dict[str, Any]] = []

    def serve(body: dict[str, Any]) -> tuple[int, Any]:
        seen.append(body)
        return 200, {"choices": [{"text": "a"}]}

    with answering(serve) as url:
        Policy(url=url, name="x").generate(["a"], temperature=0.0)
    (body,) = seen
    found = {name: body[name] for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
    assert found == {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


def test_a_key_is_read_as_a_file_may_hold_it_and_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Handler(JsonAnswers, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(self.headers["Authorization"])
            self.answer({"choices": [{"text": "a"}]})

        def do_GET(self) -> None:
            seen.append(self.headers["X-API-Key"])
            self.answer({"supported_models": [{"model_name": "base", "max_context_length": 128}]})

    with serving(Handler) as url:
        asks: list[Callable[[], object]] = [
            lambda: Policy(url=url, name="x").generate(["a"]),
            lambda: EndpointClient(url).model(),
        ]
        for variable, ask in zip(("OPENAI_API_KEY", KEY), asks, strict=True):
            monkeypatch.setenv(variable, "sk-secret\n")
            ask()
            monkeypatch.setenv(variable, "sk-se\ncret")
            with pytest.raises(LabError, match=f"{variable} is not a valid key: write one line") as caught:
                ask()
            assert "cret" not in str(caught.value)
    assert list(filter(None, seen)) == ["Bearer sk-secret", "sk-secret"]  # the look for an endpoint sends none


@contextmanager
def answering(serve: Callable[[dict[str, Any]], tuple[int, Any]]) -> Iterator[str]:
    """Answer each POST with what a function returns, and each GET with 404; yield the address."""

    class Handler(JsonAnswers, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def do_POST(self) -> None:
            code, told = serve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.answer(told, code)

    with serving(Handler) as url:
        yield url


@pytest.mark.parametrize("name", ["load_format", "quantization", "tensor_parallel_size"])
def test_weights_are_shared_by_one_plain_engine(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LabError, match=rf"share_weights does not go with engine=\{{'{name}'"):
        Policy(str(tmp_path), share_weights=True, engine={name: 2})


def test_quantized_weights_are_not_shared(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    with pytest.raises(LabError, match=r"with share_weights, .* weights in fp8, .*: take the model in bfloat16"):
        Policy(str(tmp_path), share_weights=True)
    # Alone, vLLM serves them.
    assert Policy(str(tmp_path)).model_name == str(tmp_path)


@pytest.mark.parametrize(("how", "count"), [("fp8", 1), ("fbgemm_fp8", 1), ("bitsandbytes", 0)])
def test_adapters_train_on_some_quantized_weights(how: str, count: int) -> None:
    assert len([*quantization_problems("a/model", {"quant_method": how}, "fp8")]) == count


# What vLLM 0.31 says.
LONG = "This model's maximum context length is 128 tokens. However, … your prompt contains 500 input tokens."
FULL = "The decoder prompt (length 128) … is longer than the maximum model length of 128."
MANY = "Requested sample logprobs of 50, which is greater than max allowed: 20 (parameter=logprobs, value=50)"
ODD = "Token id 99999 is out of vocabulary"


@pytest.mark.parametrize(
    ("said", "options", "fix"),
    [
        (LONG, {}, "input tokens: shorten the prompt, or raise the engine's memory, if the model takes longer ones"),
        (FULL, {"max_model_len": 128}, "of 128: shorten the prompt, or raise the engine's max_model_len"),
        (MANY, {}, "value=50): ask for fewer, or raise the engine's max_logprobs"),
        (ODD, {}, "vocabulary: change what it names"),
    ],
)
def test_a_refusal_of_vllm_ends_with_the_fix(said: str, options: dict[str, int], fix: str) -> None:
    assert str(vllm_refusal(ValueError(said), options)).endswith(fix)


SMALL = (
    "To serve at least one request with the model's max seq len (131072), (48.00 GiB KV cache is needed, which is "
    "larger than the available KV cache memory (1.0 GiB). Based on the available memory, the estimated maximum model "
    "length is 2720. Try increasing `gpu_memory_utilization` (which also controls CPU memory on the CPU backend) or "
    "decreasing `max_model_len` when initializing the engine."
)
NONE = "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."
TAKEN = (
    "Free memory on device cuda:0 (1.0/80.0 GiB) on startup is less than desired GPU memory utilization (0.4, 32.0 "
    "GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
NODE = (
    "Available memory on node 0 (4.0/23.5 GiB) on kv cache allocation is less than requested memory for kv (48.0 GiB). "
    "Reduce CPU memory used by other processes."
)


@pytest.mark.parametrize(
    ("said", "options", "told"),
    [
        (SMALL, {}, "maximum model length is 2720): lower the engine's max_model_len, or raise its gpu_memory_util"),
        (NONE, {"seed": 1}, "the cache blocks): lower the engine's max_model_len, or raise its gpu_memory_utilization"),
        (TAKEN, {}, "(0.4, 32.0 GiB)): lower the engine's gpu_memory_utilization or kv_cache_memory_bytes, or end"),
        (NODE, {}, "(48.0 GiB)): lower the engine's gpu_memory_utilization or kv_cache_memory_bytes, or end what else"),
        ("no such model", {}, "vLLM does not start with a/model (no such model): check the model's name"),
        ("what", {"seed": 1}, "(what): check the model's name, and the engine's arguments (seed)"),
    ],
)
def test_an_engine_that_does_not_start_says_what_to_change(said: str, options: dict[str, int], told: str) -> None:
    with pytest.raises(LabError) as caught, starting("a/model", options):
        raise ValueError(said)
    assert told in str(caught.value)
    assert not re.search("Try|Decrease|Reduce", str(caught.value))


@pytest.mark.full
def test_a_model_of_a_long_context_starts_with_what_memory_allows(lab_python: Path, tmp_path: Path) -> None:
    seen = scripts.seen(lab_python, Path(__file__).with_name("start_cases.py"), tmp_path, told=scripts.SERVING)
    for lengths in (seen["policy"], seen["engine"]):
        assert 16 <= lengths["takes"] < lengths["model"]
        assert lengths["answered"] == 2
    assert "max_model_len, or raise its gpu_memory_utilization or kv_cache_memory_bytes" in seen["too long"]
    assert seen["wrong"].endswith("check the model's name, and the engine's arguments (kv_cache_memory_bytes, nothing)")
