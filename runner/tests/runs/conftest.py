"""A cluster of plain objects, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from runner.tests.runs.api_server import Cluster, serving

from stoker.runs.client import Client, connect


@pytest.fixture
def cluster() -> Cluster:
    """A cluster without objects."""
    return Cluster()


@pytest.fixture
def kubeconfig(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The kubeconfig of that cluster, which answers; its namespace is `ml`."""
    with serving(cluster, tmp_path) as path:
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield path


@pytest.fixture
def client(kubeconfig: Path) -> Client:
    """A client of that cluster."""
    return connect()
