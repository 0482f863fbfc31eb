"""The recipes are valid on the catalogue for NVIDIA GPUs, read rows in the form of their data, and fit."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.helm import ROOT, TRAINING_RUNTIMES, VLLM_SERVING, Manifest, render
from charts.runtimes import runtimes
from stoker.cluster.validate import Validation, validate_one
from stoker.contract.exits import ExitCode

RECIPES = ROOT / "examples" / "recipes"
QUESTION = {"role": "user", "content": "What is 1/2 + 1/2?"}
ANSWERS = [[QUESTION, {"role": "assistant", "content": text}] for text in ("1", "2")]
# Rows as the data set of each recipe has them, and as that of another method has.
ROWS: dict[str, dict[str, Any]] = {
    "chat-lora": {"messages": ANSWERS[0], "source": "a"},
    "dpo-8b": {"chosen": ANSWERS[0], "rejected": ANSWERS[1], "score_chosen": 8.0, "score_rejected": 3.0},
    "grpo-math": {"prompt": [QUESTION], "solution": "1"},
}
# Sizes of their models, and the memory of the device that the table promises.
SHAPES = {
    "chat-lora": ((1024, 3072, 28, 16, True), "16Gi"),
    "dpo-8b": ((4096, 12288, 36, 32, False), "80Gi"),
    "grpo-math": ((2048, 6144, 28, 16, True), "24Gi"),
}


@pytest.fixture(scope="module")
def catalogue() -> dict[str, Manifest]:
    return {runtime["metadata"]["name"]: runtime for runtime in runtimes(render(TRAINING_RUNTIMES))}


def recipe(name: str) -> Manifest:
    found: Manifest = yaml.safe_load((RECIPES / name / "trainjob.yaml").read_text())
    return found


def config(name: str) -> dict[str, Any]:
    (width, inner, layers, heads, tied), _ = SHAPES[name]
    return {
        "model_type": "qwen3", "head_dim": 128, "vocab_size": 151936, "num_key_value_heads": 8, "hidden_size": width,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "tie_word_embeddings": tied, "max_position_embeddings": 40960,
    }  # fmt: skip


@pytest.fixture
def judge(catalogue: dict[str, Manifest], tmp_path: Path) -> Callable[[str, dict[str, Any]], Validation]:
    """Validates a recipe, whose initializers have fetched its model and rows of this form."""

    def validated(name: str, row: dict[str, Any]) -> Validation:
        files = {
            "model/config.json": config(name),
            "model/tokenizer_config.json": {"chat_template": "{{ messages }}"},
            "dataset/train.jsonl": row,
            "dataset/test.jsonl": row,
        }
        for path, content in files.items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_text(json.dumps(content) + "\n")
        job = recipe(name)
        volumes = [f"initializer={tmp_path}"]
        volumes += ["rewards=" + str(RECIPES / name)] if (RECIPES / name / "math_rewards.py").exists() else []
        return validate_one(job, catalogue[job["spec"]["runtimeRef"]["name"]], volumes)

    return validated


def test_each_recipe_is_tested() -> None:
    assert {path.parent.name for path in RECIPES.glob("*/trainjob.yaml")} == ROWS.keys() == SHAPES.keys()


@pytest.mark.parametrize("name", ROWS)
def test_a_recipe_is_valid_with_its_data(name: str, judge: Callable[[str, dict[str, Any]], Validation]) -> None:
    verdict = judge(name, ROWS[name])
    assert verdict.problems == ()


@pytest.mark.parametrize("name", ROWS)
def test_a_recipe_with_data_of_another_is_refused(
    name: str, judge: Callable[[str, dict[str, Any]], Validation]
) -> None:
    verdict = judge(name, {"text": "1"} if name != "chat-lora" else ROWS["dpo-8b"])
    assert [code for code, _ in verdict.problems] == [ExitCode.BAD_DATA]


@pytest.mark.parametrize("name", SHAPES)
def test_its_model_fits(name: str, catalogue: dict[str, Manifest], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config(name)))
    job = recipe(name)
    env = {item["name"]: item["value"] for item in job["spec"]["trainer"]["env"]}
    words = ["--device-memory", SHAPES[name][1], str(tmp_path), "--use_peft"]
    words += ["--lora_r", env.get("STOKER_ARG_LORA_R", "16")]
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "estimate", *words],
        check=False, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "runner" / "src")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_chat_model_is_served_from_the_claim_of_its_run() -> None:
    path = RECIPES / "chat-lora" / "serving.yaml"
    claim = f"initializer-{recipe('chat-lora')['metadata']['name']}"
    assert yaml.safe_load(path.read_text())["adapters"][0]["claim"] == claim
    assert f"claimName: {claim}" in yaml.safe_dump_all(render(VLLM_SERVING, [path]))


@pytest.mark.parametrize(
    ("text", "solution", "reward"),
    [
        (r"So it is \boxed{\dfrac{1}{2}}.", r"$\frac{1}{2}$", 1.0),
        (r"First \boxed{3}, no: \boxed{ 4 }", "4", 1.0),
        (r"First \boxed{4}, no: \boxed{3}", "4", 0.0),
        (r"\boxed{4", "4", 0.0),
        ("4", "4", 0.0),
        (r"\boxed{}", "4", 0.0),
    ],
)
def test_the_reward_reads_the_last_box(text: str, solution: str, reward: float) -> None:
    spec = importlib.util.spec_from_file_location("rewards", RECIPES / "grpo-math" / "math_rewards.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    completion = [{"role": "assistant", "content": text}]
    assert module.boxed_answer([completion], solution=[solution], prompts=[]) == [reward]
