"""How watchers have weights and adapters loaded where engines take turns, by files that they share with the turns.

`stoker slice run` alone pauses an engine and lets it go on. If the watcher did so too, it could wake an engine that has
just been parked, or one whose weights are half loaded. The watcher loads adapters itself, without a pause, but only
into an engine that runs: the device's memory of one that sleeps is not there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stoker.serve.slices import guard

_ASK_SECONDS = 0.02


class Reloads:
    """Requests to load what an engine's workers have read: the watcher asks, `stoker slice run` answers.

    A request that is lost is no harm: the watcher asks again as long as the workers lack the version.

    Args:
        folder: that both share.
        seconds: how long an adapter may take to load before `stoker slice run` waits for it no more.
    """

    def __init__(self, folder: Path, seconds: float = 60.0) -> None:
        self._folder, self._seconds = folder, seconds
        self._asked, self._answered = folder / "reload.json", folder / "reloaded.json"
        self._adapters = folder / "adapters.json"

    # The watcher of whole weights.

    def wait(self, name: str, seconds: float) -> list[dict[str, Any]] | None:
        """Ask for a reload unless that was done, and wait for the answer as long as the engine may run.

        Args:
            name: of the version that the workers have read.
            seconds: how long to wait at most.

        Returns:
            what each worker answered; None if there is no answer yet.

        Raises:
            OSError: the request cannot be written.
        """
        if self.asked() != name:
            _write(self._asked, {"name": name})
        deadline = time.monotonic() + seconds
        while (found := self.answers(name)) is None and self._may_run() and time.monotonic() < deadline:
            time.sleep(_ASK_SECONDS)
        return found

    def withdraw(self) -> None:
        """Ask for nothing any more, before the workers read something else.

        A request that stays costs a pause alone: workers load only the version that was asked for.
        """
        with suppress(OSError):
            self._asked.unlink()

    def answers(self, name: str) -> list[dict[str, Any]] | None:
        """Take the answer to a request, which is then gone; None if there is none."""
        found = _read(self._answered)
        if found.get("name") != name:
            return None
        self._answered.unlink(missing_ok=True)
        return list(found["workers"])

    def _may_run(self) -> bool:
        permit = guard.read_permit(self._folder)
        return permit is not None and permit.allows and guard.now() < permit.until

    # The watcher of adapters.

    @contextmanager
    def in_turn(self) -> Iterator[bool]:
        """Keep an engine that runs from being parked while an adapter is loaded, or ask for its turn.

        Yields:
            whether it runs: nothing may be loaded otherwise.

        Raises:
            OSError: the request cannot be written.
        """
        # Before the permit is read: who parks writes the permit before it reads this, so one of them sees the other.
        _write(self._adapters, {"loads": True})
        if not self.runs():
            _write(self._adapters, {"loads": False})
            yield False
            return
        try:
            yield True
        finally:
            self.needs_no_turn()

    def needs_no_turn(self) -> None:
        """Note that no adapter waits to be loaded."""
        with suppress(OSError):
            self._adapters.unlink()

    def runs(self) -> bool:
        """Return whether the engine has its turn, and nothing is under way that parks or resumes it."""
        permit = guard.read_permit(self._folder)
        return permit is not None and permit.state == guard.RUNNING and guard.now() < permit.until

    # `stoker slice run`.

    def asked(self) -> str:
        """Return the version that is to be loaded; empty for none."""
        return str(_read(self._asked).get("name", ""))

    def answer(self, name: str, workers: Iterable[Mapping[str, Any]]) -> None:
        """Answer a request.

        Args:
            name: of the version that was asked for.
            workers: what each worker answered.

        Raises:
            OSError: the answer cannot be written.
        """
        _write(self._answered, {"name": name, "workers": [dict(one) for one in workers]})
        if self.asked() == name:
            self._asked.unlink(missing_ok=True)

    def wants_turn(self) -> bool:
        """Return whether adapters wait to be loaded, or one is being loaded."""
        return self._adapters.exists()

    def settles(self) -> bool:
        """Wait until no adapter is being loaded, once the permit lets none begin; return whether that was in time."""
        deadline = time.monotonic() + self._seconds
        while _read(self._adapters).get("loads"):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_ASK_SECONDS)
        return True


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, TypeError, ValueError):
        return {}


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file, as a whole or not at all."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content))
    new.rename(path)
