"""An engine that trains and serves holds the weights once."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner.tests.lab.scripts import SERVING, printed, seen

CASES = Path(__file__).with_name("memory_cases.py")


@pytest.mark.full
def test_training_and_serving_take_the_memory_of_serving(lab_python: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    printed(lab_python, CASES, "write", model, told=SERVING)
    alone, both, copy = (seen(lab_python, CASES, case, model, told=SERVING) for case in ("alone", "both", "copy"))
    assert alone["weights"] >= 1e9
    assert both["peak"] <= 1.05 * alone["peak"]
    assert copy["peak"] > 1.5 * alone["peak"], "a second copy is seen"
