"""The files of our LoRA layers are an adapter to vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner.tests.lab.scripts import SERVING, seen

CASES = Path(__file__).with_name("served_cases.py")


@pytest.mark.full
def test_vllm_serves_the_adapter(lab_python: Path, tmp_path: Path) -> None:
    found = seen(lab_python, CASES, tmp_path, told=SERVING)
    assert found["distance"] <= 1e-3
    assert found["from the base"] >= 0.5
