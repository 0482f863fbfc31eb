"""No process outlives the one that started it, however early that one is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def test_a_process_whose_parent_is_gone_already_ends_itself() -> None:
    program = (
        "import sys; from stoker.rank.lifeline import end_with_parent; end_with_parent(int(sys.argv[1])); print('on')"
    )
    environ = {**os.environ, "PYTHONPATH": str(SOURCE)}

    def started_by(parent: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program, str(parent)], env=environ, check=False, capture_output=True, text=True
        )

    assert started_by(os.getpid()).stdout == "on\n"
    orphan = started_by(os.getpid() + 1)
    assert (orphan.returncode, orphan.stdout) == (-9, "")
