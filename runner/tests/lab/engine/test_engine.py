"""One engine trains and serves: one copy of the weights, and each answer is by the weights as they are now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from runner.tests.lab import scripts

pytestmark = pytest.mark.full  # needs vLLM's and the trainers' environment on this machine

CASES = Path(__file__).with_name("engine_cases.py")
ENGINES = [
    *((family, "vllm") for family in ("qwen2", "qwen3", "llama", "gemma2", "phi3")),
    ("llama", "transformers"),
]


@pytest.fixture(scope="module", params=ENGINES, ids="-".join)
def seen(request: pytest.FixtureRequest, lab_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process with an engine saw."""
    family, backend = request.param
    folder = tmp_path_factory.mktemp("engine")
    found: dict[str, Any] = scripts.seen(lab_python, CASES, family, backend, folder, told=scripts.SERVING)
    return found | {"family": family, "backend": backend}


def test_the_training_model_is_the_checkpoint(seen: dict[str, Any]) -> None:
    assert seen["logits"] <= 1e-5


def test_a_new_adapter_changes_no_answer(seen: dict[str, Any]) -> None:
    assert seen["new adapter"] <= 1e-3


def test_answers_are_by_the_adapter_as_it_is_now(seen: dict[str, Any]) -> None:
    assert seen["losses"][-1] < 0.95 * seen["losses"][0]
    assert seen["after training"] <= 1e-3
    assert seen["from the base"] >= 0.5
    assert seen["base again"]
    assert seen["trained again"]


def test_log_probabilities_are_those_of_the_sampled_distribution(seen: dict[str, Any]) -> None:
    assert seen["sampled"] <= 1e-3
    assert seen["seed"] == [True, True]


def test_an_adapter_is_saved_and_loaded_bit_by_bit(seen: dict[str, Any]) -> None:
    assert seen["files"]
    assert seen["loaded"]


def test_a_step_of_several_batches_is_a_step_of_their_labels(seen: dict[str, Any]) -> None:
    assert seen["accumulated"] <= 1e-6
    assert seen["own loss"] > 0


def test_the_start_of_vllm_leaves_random_numbers_as_they_are(seen: dict[str, Any]) -> None:
    assert seen["random numbers"] or seen["backend"] == "transformers"  # which makes its adapters in this process


def test_a_prompt_longer_than_the_engine_takes_is_refused_with_the_fix(seen: dict[str, Any]) -> None:
    if seen["backend"] == "transformers":
        return  # it takes what the model does
    assert seen["refused"].endswith(": shorten the prompt, or raise the engine's max_model_len")


def test_what_was_interrupted_is_not_answered_later(seen: dict[str, Any]) -> None:
    if seen["backend"] == "transformers":
        return  # nothing outlives a call
    assert seen["interrupted"]
    assert "vLLM has requests that are not finished" in seen["unfinished"]


def test_every_parameter_lies_in_the_engine_and_a_copy_is_noticed(seen: dict[str, Any]) -> None:
    if seen["backend"] == "transformers":
        return  # there is one model
    assert seen["outside"] == []
    assert len(seen["planted"]) == 1
    assert "layers.1.mlp.down_proj" in seen["planted"][0]


def test_fused_layers_add_the_adapters_of_their_parts(seen: dict[str, Any]) -> None:
    if seen["backend"] == "transformers":
        return  # nothing is fused
    # The others have adapters on their attention alone.
    layers = {"qkv_proj", "gate_up_proj"} if seen["family"] in ("llama", "phi3") else {"qkv_proj"}
    assert set(seen["fused"]) == layers
    assert seen["fused"]["qkv_proj"]["effect"] > 1e-3
    for layer in seen["fused"].values():
        assert layer["pair"]
        assert layer["gradients"]
        assert layer["distance"] <= 1e-5
