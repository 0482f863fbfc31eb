"""A run that publishes to made-up samplers."""

from __future__ import annotations

from pathlib import Path

from runner.tests.rollouts.replicas import FakeReplica, until, urls
from runner.tests.serve.adapters.samples import BASE

from stoker.rollouts.addresses import addresses_in
from stoker.rollouts.fleet import Fleet
from stoker.rollouts.publish import Publisher
from stoker.rollouts.replicas import Needs
from stoker.rollouts.stores import Adapters
from stoker.serve.adapters import live, versions


class Run:
    """A run that publishes, and what its engine is told and uses.

    Args:
        folder: of published versions.
        found: its samplers.
        seconds: how long one of them may hold up the others.
        wait_seconds: how long there may be none.
        run: its name.
    """

    def __init__(
        self,
        folder: Path,
        found: list[FakeReplica],
        seconds: float = 5.0,
        wait_seconds: float = 20.0,
        *,
        run: str = "run",
    ) -> None:
        self.name = live.claim(folder, run, f"job-{run}")
        self.folder = folder
        self.fleet = Fleet(addresses_in(urls(found)), self.name, Needs(), wait_seconds=wait_seconds)
        self.fleet.check()
        until(lambda: len(self.fleet.ready()) == len(found))
        self.usable: list[int] = []
        self.in_use = frozenset[int]()
        store = Adapters(folder, self.name, {"name_or_path": BASE, "revision": None})
        self.publisher = Publisher(store, self.fleet, self.usable.append, lambda: self.in_use, seconds=seconds)

    def has(self, version: int) -> bool:
        """Return whether a version is usable."""
        return version in self.usable

    def versions(self) -> list[int]:
        """Return the numbers of the versions that are there."""
        return [version.number for version in versions.read_published(self.folder) if version.adapter == self.name]

    def close(self) -> None:
        """End it."""
        self.publisher.close()
        self.fleet.close()
