"""What all tests of the runner share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _not_told_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what this shell or make may say to a run (`STOKER_CLUSTER` is make's) away from the tests."""
    for name in [name for name in os.environ if name.startswith(("STOKER_", "PET_"))]:
        monkeypatch.delenv(name)
