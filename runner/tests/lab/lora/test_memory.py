"""LoRA layers of our own take no more memory than PEFT's."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
CASES = Path(__file__).with_name("memory_cases.py")


@pytest.mark.full
def test_training_takes_the_memory_that_it_takes_with_peft(trainer_python: Path) -> None:
    ours, theirs = (_training(trainer_python, whose) for whose in ("ours", "peft"))
    assert ours["weights"] >= 1e9
    assert 0 < ours["optimizer"] <= 1.02 * theirs["optimizer"]
    assert ours["peak"] <= 1.02 * theirs["peak"]


def _training(python: Path, whose: str) -> dict[str, int]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([python, CASES, whose], check=True, stdout=subprocess.PIPE, text=True, env=env)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found
