"""Scripts that tests start in the environment of the trainers, or in the one that has vLLM too."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
TRAINING = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
# The threads are the test's, and nothing is compiled.
SERVING = {
    **TRAINING,
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


def environment_of(told: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a script, which may import what lies beside the tests."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **told}


def printed(python: Path, *command: Path | str, told: Mapping[str, str] = TRAINING) -> str:
    """Return what a script prints.

    Args:
        python: of the environment.
        command: the script and its arguments.
        told: its variables besides this process's.

    Raises:
        AssertionError: it failed; carries what it said.
    """
    done = subprocess.run([python, *command], check=False, capture_output=True, text=True, env=environment_of(told))
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


def seen(python: Path, *command: Path | str, told: Mapping[str, str] = TRAINING) -> Any:
    """Return the JSON in the last line that a script prints; the arguments are those of `printed`."""
    return json.loads(printed(python, *command, told=told).splitlines()[-1])


def failures(python: Path, script: Path, *more: Path | str, told: Mapping[str, str] = TRAINING) -> str:
    """Run a script of cases and return the tracebacks of those that fail."""
    found: dict[str, str] = seen(python, script, *more, told=told)
    return "\n".join(found.values())
