"""Fixtures of the cluster's own tests."""

from __future__ import annotations

import pytest

from cluster import CannotRunHereError, Cluster, connect
from cluster.provider import choose


@pytest.fixture(scope="session")
def live() -> Cluster:
    """The cluster of the provider this machine would use, started if it is not up."""
    try:
        provider = choose()
        provider.up()
        return connect(provider.name)
    except CannotRunHereError as reason:
        pytest.skip(str(reason))
