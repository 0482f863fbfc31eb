"""A cluster of plain objects, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
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
def other_context(kubeconfig: Path) -> str:
    """The name of another context of that kubeconfig, which a shell must quote; it is for the same cluster."""
    config = yaml.safe_load(kubeconfig.read_text())
    config["contexts"].append({**config["contexts"][0], "name": "team a"})
    kubeconfig.write_text(yaml.safe_dump(config))
    return "team a"


@pytest.fixture
def client(kubeconfig: Path) -> Client:
    """A client of that cluster."""
    return connect()
