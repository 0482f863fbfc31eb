"""A server's base model and a finished run's adapter for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner.tests.serve.adapters.samples import make_adapter, make_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The folder of a base model."""
    return make_model(tmp_path / "model")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """The output folder of a finished run."""
    return make_adapter(tmp_path / "output")
