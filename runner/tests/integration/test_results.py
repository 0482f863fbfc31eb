"""What becomes of a result with real tensors: merged, evaluated and asked, each compared with what PEFT computes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("result_cases.py")


def test_a_result_is_merged_evaluated_and_asked(trainer_python: Path, inputs: Path, tmp_path: Path) -> None:
    """Takes some 8 s of CPU, nearly all of it for loading torch and TRL once."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    words = [trainer_python, SCRIPT, inputs / "model", tmp_path]
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["merge", "merge twice", "held out", "chat", "another base", "bad rows"]


@pytest.mark.full
def test_a_task_of_ones_own_is_run_by_the_harness(trainer_python: Path, inputs: Path, tmp_path: Path) -> None:
    if subprocess.run([trainer_python, "-c", "import lm_eval"], check=False, capture_output=True).returncode:
        pytest.skip("the environment has no lm-eval, which the image does not lock: the extra `evaluate` brings it")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    script = SCRIPT.with_name("harness_cases.py")
    subprocess.run([trainer_python, script, inputs / "model", tmp_path], check=True, env=env)
