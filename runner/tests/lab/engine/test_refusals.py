"""What an engine cannot do is refused with what to do instead, before a model is loaded where that can be known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from runner.tests.lab import scripts

CASES = Path(__file__).with_name("refusal_cases.py")
SAID = {
    "backend": 'backend is \'sglang\': it must be "vllm" or "transformers"',
    "no vLLM": 'vLLM is not installed here: write backend="transformers", which needs no vLLM',
    "own argument": "load_format is the engine's own: leave it out",
    "ranks": "tensor_parallel_size is 2: start as many processes of one script, torchrun --nproc-per-node 2 SCRIPT",
    "stages": "pipeline_parallel_size is 2, which an engine that trains cannot be: leave it out",
    "fp8": "would have weights in fp8, which cannot be trained: take the model in bfloat16, float16 or float32",
    "fp8 files": "would have weights in fp8, which cannot be trained: take the model in bfloat16, float16 or float32",
    "fp8 type": "would have weights in float8_e4m3fn, which cannot be trained: take the model in bfloat16",
    "bfloat16": "dtype is 'bfloat16', which needs kernels of a GPU, and it has no GPU: write dtype='float32'",
    "bfloat16 argument": "TrainableEngine: dtype is 'bfloat16', which needs kernels of a GPU, and it has no GPU",
    "no model": "is not there: write an existing folder, or an id on the Hub",
    "no files": "has no model: config.json is missing; write the folder with the model's files",
    "no kind": "is not a model (",
    "no labels": "the batch has no label to learn: give one that is not -100",
    "no batch": "the batch has no label to learn: give one that is not -100",
    "no column": "the batch has input_ids, but needs input_ids, labels: add labels",
    "lists": "input_ids, labels must be tensors with a row for each example: let CausalLMCollator make the batch",
    "one row": "input_ids must be tensors with a row for each example: let CausalLMCollator make the batch",
    "long row": "the batch has rows of 513 tokens, but the model takes 512: shorten them",
    "long prompt": "prompt 1 has 513 tokens, but the model takes 512, of which max_tokens=4 are for the answer",
    "sampling": "generate: max_tokens is 0: it must be a whole number, 1 or more\ngenerate: temperature is -1.0",
    "other sampling": "generate: an engine that trains does not know stop: leave it out, or write one of max_tokens, "
    "temperature, top_p, top_k, seed, adapter\ngenerate: an engine that trains does not know n: leave it out",
    "not a number": "the loss is nan and the gradient nan: lower learning_rate",
    "one text": "the prompts are one text: write a list",
    "other base": "adapter does not fit org/one: it was trained on org/another",
    "vLLM itself": 'this engine has no vLLM: write backend="vllm"',
}


@pytest.fixture(scope="module")
def seen(trainer_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was said."""
    found: dict[str, Any] = scripts.seen(trainer_python, CASES, tmp_path_factory.mktemp("refusals"))
    return found


@pytest.mark.parametrize("case", SAID)
def test_it_says_what_to_do(seen: dict[str, Any], case: str) -> None:
    assert SAID[case] in seen["said"][case]


def test_no_model_was_loaded_to_refuse_it(seen: dict[str, Any]) -> None:
    assert seen["loaded"] == 0


def test_a_step_that_fails_leaves_the_adapter_as_it_was(seen: dict[str, Any]) -> None:
    assert seen["unchanged"]


def test_a_closed_engine_forgets_its_model_and_refuses_every_use(seen: dict[str, Any]) -> None:
    assert seen["closed"]["gone"]
    refusal = "this engine is closed: make a new one, with load_lora(FOLDER) to go on from what save_lora wrote"
    assert seen["closed"]["said"] == [refusal] * seen["closed"]["uses"]


def test_a_model_in_bfloat16_trains_in_float32_where_bfloat16_has_no_kernels(seen: dict[str, Any]) -> None:
    assert seen["auto"] == "torch.float32"
