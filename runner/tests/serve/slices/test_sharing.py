"""When an engine is told to go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.serve.slices import guard
from stoker.serve.slices.leases import Leases
from stoker.serve.slices.permits import Permits
from stoker.serve.slices.reloads import Reloads
from stoker.serve.slices.sharing import Journal, Sharing
from stoker.serve.slices.turns import Rules, Turns, Use


class Noting:
    """Hooks that note how often the engine is told to go on."""

    def __init__(self) -> None:
        self.used = 0

    def park(self) -> None:
        """Do nothing."""

    def use(self, may: Callable[[], bool]) -> None:
        """Count."""
        self.used += 1

    def reload(self, name: str) -> list[dict[str, Any]]:
        """Load nothing."""
        return []

    def load(self) -> int | None:
        """Know nothing."""
        return None


def test_an_engine_is_not_told_to_go_on_by_a_permit_that_was_written_too_late(tmp_path: Path) -> None:
    hooks, leases = Noting(), Leases("http://127.0.0.1:9", "ml", tmp_path, 1.0)
    parts = (hooks, Permits(tmp_path), Reloads(tmp_path), Journal(None, "gpu-0", "a"), None)
    sharing = Sharing(leases, "gpu-0", Turns("a", Rules()), *parts)
    # As after a stop between the decision and the permit: the guard has not read it, and others have the device.
    sharing._tell(Use(1, guard.now() - 0.001))
    assert hooks.used == 0
    sharing._tell(Use(2, guard.now() + 60))
    assert hooks.used == 1
