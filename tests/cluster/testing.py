"""A pytest fixture for suites that need the cluster: import it into a conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .connection import Cluster, connect
from .errors import CannotRunHereError
from .provider import choose


@pytest.fixture(scope="session")
def live() -> Iterator[Cluster]:
    """The cluster of the provider this machine would use, started if it is not up.

    One that was up before stays up; one that was started here is stopped when the session ends. Suites of one
    session share it: the first to ask starts it, and its end comes last.
    """
    try:
        provider = choose()
        was_up = all(health.healthy for health in provider.status())
        provider.up()
        cluster = connect(provider.name)
    except CannotRunHereError as reason:
        pytest.skip(str(reason))
    yield cluster
    if not was_up:
        provider.down()
