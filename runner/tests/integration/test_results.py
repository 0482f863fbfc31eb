"""What becomes of a result with real tensors: merged, evaluated and asked, each compared with what PEFT computes."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from runner.tests.integration.environments import TINY_INPUTS, environment, made_once
from runner.tests.lab.servers import server

# As many tokens as the tiny model can have.
CONTEXT = 128
SCRIPT = Path(__file__).with_name("result_cases.py")
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
(GGUF_EXTRA,) = PROJECT["optional-dependencies"]["gguf"]


def test_a_result_is_merged_evaluated_and_asked(trainer_python: Path, inputs: Path, tmp_path: Path) -> None:
    """Takes some 8 s of CPU, nearly all of it for loading torch and TRL once."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    words = [trainer_python, SCRIPT, inputs / "model", tmp_path]
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "merge",
        "merge twice",
        "held out",
        "laid out as in training",
        "served",
        "chat",
        "another base",
        "bad rows",
    ]


@pytest.mark.full
def test_tasks_of_ones_own_measure_a_result_and_a_server(tmp_path: Path) -> None:
    """Full, because vLLM serves the model."""
    python = environment("lab")
    model = made_once("lab", python, TINY_INPUTS) / "model"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    with server(python, model, tmp_path, "--dtype=float32", f"--max-model-len={CONTEXT}") as url:
        script = SCRIPT.with_name("harness_cases.py")
        words = [str(word) for word in (python, script, model, tmp_path, url, CONTEXT)]
        done = subprocess.run(words, check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_llama_cpps_own_converter_writes_a_file(trainer_python: Path, tmp_path: Path) -> None:
    """Full, because the converter is fetched: 77 MB."""
    beside = tmp_path / "beside"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(beside), "pip", GGUF_EXTRA]
    subprocess.run(install, check=True)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(beside), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    words = [trainer_python, SCRIPT.with_name("gguf_cases.py"), tmp_path]
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr + done.stdout
