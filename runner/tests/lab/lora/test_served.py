"""The files of our LoRA layers are an adapter to vLLM."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from runner.tests.lab.engine.test_engine import ENV

CASES = Path(__file__).with_name("served_cases.py")


@pytest.mark.full
def test_vllm_serves_the_adapter(lab_python: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [lab_python, CASES, tmp_path], check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **ENV}
    )
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["distance"] <= 1e-3
    assert seen["from the base"] >= 0.5
