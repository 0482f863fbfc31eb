"""`stoker estimate` says what a model needs, and `stoker plan` the same of the model in the workspace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runner.tests.command_line import invoke
from runner.tests.plan.models import QWEN_8B


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with the configuration of Qwen3 8B."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN_8B))
    return tmp_path


def test_the_first_line_is_what_was_asked_for(model: Path) -> None:
    result = invoke("estimate", "--devices", "8", "--device-memory", "80Gi", str(model))
    assert result.exit_code == 78
    assert result.stdout.startswith("qwen3, 8,190,735,360 weights, 8,190,735,360 of them trained\n")
    lines = [line for line in result.stdout.splitlines() if line.startswith("full, ")]
    numbers = "full, not sharded 30.5 GiB 30.5 GiB 61.0 GiB 122.1 GiB does not fit"
    assert lines[0].split() == numbers.split()
    assert lines[1].startswith("full, shared by 8 processes (STOKER_SHARDING=full)")
    assert lines[1].endswith("fits")
    assert "not counted: activations" in result.stdout


def test_trainer_flags_and_sharding_count(model: Path) -> None:
    asked = ("--sharding", "full", "--devices", "8", "--nodes", "2", "--device-memory", "2Gi")
    result = invoke("estimate", *asked, str(model / "config.json"), "--use_peft", "--lora_r", "64")
    assert result.exit_code == 0
    assert "lora, shared by 16 processes" in result.stdout
    assert "174,587,904 of them trained" in result.stdout


def test_without_the_size_of_a_device_nothing_is_judged(model: Path) -> None:
    result = invoke("estimate", str(model))
    assert result.exit_code == 0
    assert "fit" not in result.stdout
    told = json.loads(invoke("estimate", "--output", "json", str(model)).stdout)
    assert (told["device"], told["fits"]) == (None, True)
    assert told["ways"][0] | {"write": "", "tuning": "full", "total": 131051765760} == told["ways"][0]


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["nowhere"], 66, "nowhere has no config.json"),
        (["{model}", "--lora_rank", "8"], 64, "--lora_rank is called --lora_r"),
        (["{model}", "--deepspeed", "zero3.json"], 64, "these flags keep weights outside the devices"),
        (["--device-memory", "80GB", "{model}"], 64, "'80GB' is not a quantity"),
        (["--device-memory", "80", "{model}"], 64, "--device-memory 80 is 80 bytes: write a unit too, such as 80Gi"),
        (["--device-memory", "80", "nowhere.yaml"], 64, "such as 80Gi"),
        (["nowhere.yaml"], 66, "nowhere.yaml cannot be read"),
        (["--devices", "0", "{model}"], 64, "0 is not in the range"),
        (["--method", "bogus", "{model}"], 64, "'bogus' is not a method"),
    ],
)
def test_what_it_cannot_answer_is_said(model: Path, arguments: list[str], code: int, told: str) -> None:
    result = invoke("estimate", *(word.replace("{model}", str(model)) for word in arguments))
    assert result.exit_code == code
    assert told in result.stderr


def test_an_unknown_family_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba2"}')
    result = invoke("estimate", str(tmp_path))
    assert result.exit_code == 64
    assert "of the families llama, granite" in result.stderr
