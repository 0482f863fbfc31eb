"""A fleet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from runner.tests.serve.fleet.members import Members, members_in


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    """A fleet without replicas."""
    with members_in(tmp_path) as found:
        yield found
