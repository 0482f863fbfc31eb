"""Episodes, tools and rewards with TRL's own templates, parsers and reward functions."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("rollout_cases.py")


@pytest.mark.full
def test_episodes_are_played_with_trls_parts(trainer_python: Path, inputs: Path) -> None:
    done = subprocess.run([trainer_python, CASES, inputs / "model"], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    failed = json.loads(done.stdout.splitlines()[-1])
    assert not failed, "\n".join(failed.values()) + done.stderr
