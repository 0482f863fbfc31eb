"""The files of our LoRA layers are an adapter to vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner.tests.lab.scripts import SERVING, seen

CASES = Path(__file__).with_name("served_cases.py")


@pytest.mark.full
@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3"])  # the last one's own layers are fused
def test_vllm_serves_the_adapter(lab_python: Path, tmp_path: Path, family: str) -> None:
    found = seen(lab_python, CASES, family, tmp_path, told=SERVING)
    assert found["distance"] <= 1e-3
    assert found["from the base"] >= 0.1  # a hundred times as far
