"""When an engine is told to go on, and to park."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.serve.slices import guard
from stoker.serve.slices.leases import Leases
from stoker.serve.slices.permits import Permits
from stoker.serve.slices.reloads import Reloads
from stoker.serve.slices.sharing import Journal, Sharing
from stoker.serve.slices.turns import Park, Rules, Turns, Use


class Noting:
    """Hooks that note how often the engine is told to go on, and to park."""

    def __init__(self) -> None:
        self.used = self.parked = 0

    def park(self) -> None:
        """Count."""
        self.parked += 1

    def use(self, may: Callable[[], bool]) -> None:
        """Count."""
        self.used += 1

    def reload(self, name: str) -> list[dict[str, Any]]:
        """Load nothing."""
        return []

    def load(self) -> int | None:
        """Know nothing."""
        return None


def made(folder: Path, hooks: Noting, idle_seconds: float | None) -> tuple[Sharing, Turns]:
    """Return one engine's part, and what decides for it."""
    turns = Turns("a", Rules())
    parts = (hooks, Permits(folder), Reloads(folder, 0.05), Journal(None, "gpu-0", "a"), idle_seconds)
    return Sharing(Leases("http://127.0.0.1:9", "ml", folder, 1.0), "gpu-0", turns, *parts), turns


def test_an_engine_is_not_told_to_go_on_by_a_permit_that_was_written_too_late(tmp_path: Path) -> None:
    hooks = Noting()
    sharing, _ = made(tmp_path, hooks, None)
    # As after a stop between the decision and the permit: the guard has not read it, and others have the device.
    sharing._tell(Use(1, guard.now() - 0.001))
    assert hooks.used == 0
    sharing._tell(Use(2, guard.now() + 60))
    assert hooks.used == 1


def test_an_engine_is_not_told_to_park_while_an_adapter_is_loaded(tmp_path: Path) -> None:
    guard.write(guard.sight_path(tmp_path), guard.Sight(guard.ENGINE, 0, guard.now()))
    guard.lock_path(tmp_path).touch()  # nobody holds it, so the engine ends when it has to
    hooks = Noting()
    sharing, _ = made(tmp_path, hooks, None)
    sharing._tell(Use(1, guard.now() + 60))
    with Reloads(tmp_path).in_turn() as may:
        assert may
        sharing._tell(Park())
        assert hooks.parked == 0
    guard.write(guard.permit_path(tmp_path), guard.Permit(guard.RUNNING, guard.now() + 60))
    sharing, _ = made(tmp_path, hooks, None)
    sharing._tell(Park())
    assert hooks.parked == 1


def test_an_engine_without_requests_asks_for_a_turn_to_load_an_adapter(tmp_path: Path) -> None:
    sharing, turns = made(tmp_path, Noting(), 0.0)
    sharing._load = 0
    sharing._check(leave=False)
    assert not turns.wish.device
    with Reloads(tmp_path).in_turn() as may:
        assert not may
    sharing._check(leave=False)
    assert turns.wish.device
