"""What happens inside a real training loop: a loss that is no number reaches neither a checkpoint nor the end."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest


def train(python: Path, folder: Path, broken_at: int, **options: object) -> dict[str, Any]:
    """Train six steps, logging none of them, with a loss that is no number from a step on."""
    script = Path(__file__).with_name("follow_cases.py")
    done = subprocess.run(
        [str(python), str(script), str(folder), str(broken_at), json.dumps(options)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("broken_at", "options", "seen_at", "saved"),
    [
        (6, {"save_strategy": "no"}, 6, []),
        (3, {"save_steps": 2}, 4, ["checkpoint-2"]),
    ],
    ids=["in the last step", "before a checkpoint"],
)
def test_a_loss_that_is_no_number_is_seen_before_it_is_saved_however_seldom_it_is_logged(
    trainer_python: Path, tmp_path: Path, broken_at: int, options: dict[str, object], seen_at: int, saved: list[str]
) -> None:
    found = train(trainer_python, tmp_path, broken_at, **options)
    assert found["ending"] is not None, "training went through"
    code, message = found["ending"]
    assert code == 70
    assert f"the loss is nan at step {seen_at}: lower the learning rate" in message
    assert found["saved"] == saved
