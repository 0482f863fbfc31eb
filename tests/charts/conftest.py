"""Charts times the values files they are tested with."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from charts.helm import CHARTS, TRAINING_RUNTIMES, Manifest, caddy, render, values_files
from charts.runtimes import runtimes


@pytest.fixture(params=CHARTS, ids=lambda chart: str(chart.name))
def chart(request: pytest.FixtureRequest) -> Path:
    """A chart's folder."""
    folder: Path = request.param
    return folder


@pytest.fixture(params=values_files(TRAINING_RUNTIMES), ids=lambda path: str(path.stem))
def catalogue(request: pytest.FixtureRequest) -> list[Manifest]:
    """The runtimes of the catalogue, for each of its values files."""
    found: list[Manifest] = json.loads(_catalogue(request.param))
    return found


@cache
def _catalogue(values: Path) -> str:
    # As text: a test may change what it gets, and JSON is read in a hundredth of YAML's time.
    return json.dumps(runtimes(render(TRAINING_RUNTIMES, [values])))


@pytest.fixture(scope="session", name="caddy")
def _caddy() -> Path:
    """The image's program, built on this machine."""
    return caddy()
