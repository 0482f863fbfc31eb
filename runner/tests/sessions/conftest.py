"""A cluster of plain objects with the catalogue's runtime for sessions, and a client of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from runner.tests.runs.api_server import Cluster
from runner.tests.runs.conftest import client, kubeconfig

__all__ = ["client", "cluster", "kubeconfig", "runtime"]

RUNTIME = Path(__file__).parents[3] / "examples/runtimes/trl-grpo-async-cpu.yaml"
MORE_KINDS = {"clustertrainingruntimes", "networkpolicies", "leases", "resourceclaims", "localqueues"}


@pytest.fixture
def runtime() -> dict[str, Any]:
    """The catalogue's runtime, as Helm renders it."""
    found: dict[str, Any] = yaml.safe_load(RUNTIME.read_text())
    return found


@pytest.fixture
def cluster(runtime: dict[str, Any]) -> Cluster:
    """A cluster with that runtime."""
    made = Cluster()
    made.kinds |= MORE_KINDS
    # Not a copy, so that a test can change it.
    made.objects["clustertrainingruntimes", "ml", runtime["metadata"]["name"]] = runtime
    return made
