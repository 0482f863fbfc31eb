"""Samplers that tests make up, and the folder that they look into."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from runner.tests.rollouts.replicas import Replicas, replicas_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "adapters"
    made.mkdir()
    return made


@pytest.fixture
def replicas(folder: Path) -> Iterator[Replicas]:
    with replicas_of(folder) as made:
        yield made
