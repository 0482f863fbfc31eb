"""LoRA layers of our own take no more memory than PEFT's."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner.tests.lab.scripts import TRAINING, seen

CASES = Path(__file__).with_name("memory_cases.py")


@pytest.mark.full
def test_training_takes_the_memory_that_it_takes_with_peft(trainer_python: Path) -> None:
    told = {**TRAINING, "OMP_NUM_THREADS": "2"}
    ours, theirs = (seen(trainer_python, CASES, whose, told=told) for whose in ("ours", "peft"))
    assert ours["weights"] >= 1e9
    assert 0 < ours["optimizer"] <= 1.02 * theirs["optimizer"]
    assert ours["peak"] <= 1.02 * theirs["peak"]
