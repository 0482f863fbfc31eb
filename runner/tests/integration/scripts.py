"""Runs the scripts of this folder where the trainers are."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
_ENV = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}


def printed(python: Path, script: str, *arguments: str | Path) -> list[Any]:
    """Return what a script prints, line by line.

    Args:
        python: of an environment with the trainers.
        script: a file of this folder, which prints JSON.
        arguments: its arguments.
    """
    command = [python, Path(__file__).with_name(script), *arguments]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=_ENV).stdout.splitlines()
    return [json.loads(line) for line in lines if line.startswith(('{"', "["))]
