"""Where the tests of `stoker.lab` run: the trainers' environment, and the one that has vLLM too."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner.tests.integration.environments import environment, made_once

TINY_INPUTS = Path(__file__).parents[1] / "integration" / "tiny_inputs.py"


@pytest.fixture(scope="session")
def trainer_python() -> Path:
    """The Python of an environment with the trainers and this runner; made on the first use."""
    return environment("trl")


@pytest.fixture(scope="session")
def lab_python() -> Path:
    """The Python of an environment with the trainers, vLLM and this runner; made on the first use."""
    return environment("lab")


@pytest.fixture(scope="session")
def inputs(trainer_python: Path) -> Path:
    """A folder with a tiny `model` and data sets, made once for all sessions: no test writes to it."""
    return made_once("trl", trainer_python, TINY_INPUTS)


@pytest.fixture(scope="session")
def lab_inputs(lab_python: Path) -> Path:
    """The same, made by the environment with vLLM."""
    return made_once("lab", lab_python, TINY_INPUTS)
