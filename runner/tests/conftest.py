"""What all tests of the runner share."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# How long an example takes depends on what else the machine does.
settings.register_profile("stoker", deadline=None)
settings.load_profile("stoker")


@pytest.fixture(autouse=True)
def _not_told_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what this shell or make may say to a run (`STOKER_CLUSTER` is make's) away from the tests."""
    for name in [name for name in os.environ if name.startswith(("STOKER_", "PET_"))]:
        monkeypatch.delenv(name)
