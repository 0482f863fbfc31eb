"""A pytest fixture for suites that need the cluster: import it into a conftest.py."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .artifacts import cache_root
from .connection import Cluster, connect
from .errors import CannotRunHereError
from .provider import choose


@contextmanager
def starting() -> Iterator[None]:
    """Keep others that would start the cluster, or use it, waiting while it is made ready."""
    cache_root().mkdir(parents=True, exist_ok=True)
    with (cache_root() / "cluster-start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def live() -> Iterator[Cluster]:
    """The cluster of the provider this machine would use, started if it is not up.

    One that was up before stays up; one that was started here is stopped when the session ends. Suites of one
    session share it: the first to ask starts it, and its end comes last.
    """
    try:
        provider = choose()
        with starting():
            was_up = all(health.healthy for health in provider.status())
            provider.up()
        cluster = connect(provider.name)
    except CannotRunHereError as reason:
        pytest.skip(str(reason))
    yield cluster
    if not was_up:
        provider.down()
