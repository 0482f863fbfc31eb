"""The engine runs in a training process beside torch: it brings nothing of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import stoker

SOURCE = Path(stoker.__file__).parent


def test_the_engine_loads_the_standard_library_and_the_contract() -> None:
    command = "import sys, stoker.rollouts.engine, stoker.rollouts.state; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", command],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(SOURCE.parent)},
    )
    loaded = done.stdout.split()
    assert {name.split(".")[1] for name in loaded if name.startswith("stoker.")} == {"contract", "rollouts"}
    assert {name.split(".")[0] for name in loaded} - sys.stdlib_module_names <= {"stoker", "__main__"}
