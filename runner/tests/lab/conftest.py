"""Where tests of `stoker.lab` run that need vLLM beside the trainers."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner.tests.integration.environments import TINY_INPUTS, environment, made_once


@pytest.fixture(scope="session")
def lab_python() -> Path:
    """The Python of an environment with the trainers, vLLM and this runner; made on the first use."""
    return environment("lab")


@pytest.fixture(scope="session")
def lab_inputs(lab_python: Path) -> Path:
    """What `inputs` has, made by the environment with vLLM."""
    return made_once("lab", lab_python, TINY_INPUTS)
