"""An engine that trains and serves holds the weights once."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from runner.tests.lab.engine.test_engine import ENV

CASES = Path(__file__).with_name("memory_cases.py")


@pytest.mark.full
def test_training_and_serving_take_the_memory_of_serving(lab_python: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    _run(lab_python, "write", model)
    alone, both, copy = (json.loads(_run(lab_python, case, model)) for case in ("alone", "both", "copy"))
    assert alone["weights"] >= 1e9
    assert both["peak"] <= 1.05 * alone["peak"]
    assert copy["peak"] > 1.5 * alone["peak"], "a second copy is seen"


def _run(python: Path, case: str, model: Path) -> str:
    done = subprocess.run(
        [python, CASES, case, model], check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **ENV}
    )
    return (done.stdout.splitlines() or [""])[-1]
