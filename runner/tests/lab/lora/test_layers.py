"""LoRA layers of our own compute, learn and are saved as PEFT's are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from runner.tests.lab import scripts

CASES = Path(__file__).with_name("layer_cases.py")
FAMILIES = ["qwen2", "qwen3", "llama", "gemma2", "phi3"]


@pytest.fixture(scope="module")
def seen(trainer_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process with torch and PEFT saw."""
    found: dict[str, Any] = scripts.seen(trainer_python, CASES, tmp_path_factory.mktemp("layers"))
    return found


def test_gradients_are_those_of_finite_differences(seen: dict[str, Any]) -> None:
    assert seen["gradcheck"] == {
        "layer": True,
        "fused": True,
        "fused is its parts": True,
        "dropout": True,
    }


def test_two_products_serve_all_parts_of_a_fused_layer_as_they_are_now(seen: dict[str, Any]) -> None:
    assert seen["fused answers"] == {"one scale": True, "two scales": True}


@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_and_gradients_are_those_of_peft(seen: dict[str, Any], family: str) -> None:
    _assert_as_peft(seen["distances"][family], 1e-6)


def test_dropout_is_that_of_peft(seen: dict[str, Any]) -> None:
    _assert_as_peft(seen["dropout"], 1e-6)


def test_half_precision_is_that_of_peft(seen: dict[str, Any]) -> None:
    _assert_as_peft(seen["half"], 1e-6)


def _assert_as_peft(found: dict[str, float], tolerance: float) -> None:
    assert found["logits"] <= tolerance
    assert found["gradients"] <= tolerance
    assert found["effect"] > 1e-2, "an adapter that does nothing proves nothing"
    assert found["largest gradient"] > 1e-3
    assert found["same parameters"]
    assert found["frozen"]
    assert found["trainable"]


@pytest.mark.parametrize("family", FAMILIES)
def test_files_go_to_peft_and_back_bit_by_bit(seen: dict[str, Any], family: str) -> None:
    assert seen["round trip"][family] == {"files": True, "tensors": True, "logits": True}


def test_a_new_adapter_adds_nothing_and_all_of_it_learns_from_the_second_step_on(seen: dict[str, Any]) -> None:
    assert all(seen["first steps"].values()), seen["first steps"]


def test_a_layer_may_return_a_tuple(seen: dict[str, Any]) -> None:
    assert seen["tuple"]


@pytest.mark.parametrize("family", FAMILIES)
def test_all_linear_is_what_it_is_to_peft(seen: dict[str, Any], family: str) -> None:
    assert seen["all-linear"][family]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("no files", "none has no adapter_config.json: name the folder of an adapter"),
        ("cut", "/cut is damaged: adapter_model.safetensors: "),
        ("no JSON", "is damaged: adapter_config.json is not a JSON object: write one that is whole"),
        ("dora", "use_dora is True: these layers read plain LoRA only"),
        ("rslora", "use_rslora is True: these layers read plain LoRA only"),
        ("scale", "r is 4 and lora_alpha 16, but the layers scale by 2.0: make them with the rank and alpha"),
        ("rank", "take an adapter of this base model with the same rank and target_modules"),
        ("targets", "4 tensors where the model has 16"),
        ("other base", "take an adapter of this base model"),
        ("named base", "another does not fit org/one: it was trained on org/another"),
        ("no such layer", "has no such layers: choose from down_proj, gate_proj, k_proj, lm_head, o_proj, q_proj"),
        ("not linear", "model.embed_tokens, whose type is Embedding, not a linear layer: name linear layers only"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_to_do(seen: dict[str, Any], wrong: str, message: str) -> None:
    assert message in seen["refusals"][wrong]
