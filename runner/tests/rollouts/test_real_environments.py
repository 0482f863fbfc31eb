"""The examples that adapt OpenEnv and verifiers, with the packages themselves, each in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from images.builder import cache
from images.builder.hostvenv import this_python
from runner.tests.lab.scripts import seen

from stoker.cluster.processes import free_ports

pytestmark = pytest.mark.full  # installs what each of the two packages needs

HERE = Path(__file__).parent / "environments"
EXAMPLES = Path(__file__).parents[3] / "examples" / "environments"


def python_with(package: str) -> Path:
    """Return the Python of an environment with one of the packages alone, by its lock; made on the first use."""
    lock = HERE / f"{package}.lock"

    def build(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--require-hashes", "--requirement", lock]
        subprocess.run([*map(str, install)], check=True)

    key = cache.digest(this_python(), [lock], HERE)
    return cache.entry(cache.root() / "tests" / f"{package}-{key}", package, build) / "bin/python"


def told(package: str) -> Mapping[str, str]:
    """Return the variables of a script: it imports the example and what lies beside it, and asks this machine alone."""
    return {
        "PYTHONPATH": os.pathsep.join((str(EXAMPLES / package), str(HERE))),
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "HF_HUB_OFFLINE": "1",
    }


def test_sessions_of_a_real_openenv_server_are_apart_and_judged() -> None:
    (port,) = free_ports(1)
    found: dict[str, Any] = seen(python_with("openenv"), HERE / "openenv_cases.py", str(port), told=told("openenv"))
    assert found["begun"] == [{"heard": "", "seed": 3}, {"heard": "", "seed": 5}, {"heard": "", "seed": 0}]
    assert found["said"] == [
        {"heard": "hello", "seed": 3},
        {"heard": "hi", "seed": 5},
        {"heard": "bye", "seed": 3},
    ]
    assert found["over"] == "the episode is over"
    # Of two steps, of one, and of an episode that has begun.
    assert found["rewards"] == [8.0, 2.0, 0.0]


def test_tasks_of_real_verifiers_give_rows_and_judge() -> None:
    found: dict[str, Any] = seen(python_with("verifiers"), HERE / "verifiers_cases.py", told=told("verifiers"))
    system = {"role": "system", "content": "Be short."}
    assert found["rows"] == [
        {"prompt": [system, {"role": "user", "content": "2+2?"}], "task": 0},
        {"prompt": [system, {"role": "user", "content": "3+3?"}], "task": 1},
    ]
    # Right and brief, neither, brief; and right for another task. What needs a container is left out.
    assert found["judged"] == [1.5, 0.0, 0.5, 1.5]
    assert found["contained"] == [None]
