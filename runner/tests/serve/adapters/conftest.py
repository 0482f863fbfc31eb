"""A server's base model and a finished run's adapter for it, and a replica with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from runner.tests.serve.adapters.samples import BASE, make_adapter, make_model
from runner.tests.serve.adapters.stand_in import Clock, Vllm, serving

from stoker.serve.adapters.files import read_base_model
from stoker.serve.adapters.settings import Settings
from stoker.serve.adapters.watch import Watch
from stoker.serve.vllm import Server


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The folder of a base model."""
    return make_model(tmp_path / "model")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """The output folder of a finished run."""
    return make_adapter(tmp_path / "output")


@pytest.fixture
def vllm() -> Iterator[Vllm]:
    with serving(Vllm()) as found:
        yield found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "adapters"


@pytest.fixture
def watch(vllm: Vllm, model: Path, folder: Path, clock: Clock, tmp_path: Path) -> Watch:
    settings = Settings(model, "tiny", BASE, folder=folder, max_rank=8, listed=tmp_path / "list.yaml")
    return Watch(settings, Server(vllm.address, 5), read_base_model(model, BASE), clock)
