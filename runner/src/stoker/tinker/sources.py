"""The checkpoints that clients sample from: samplers serve those that were used last."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from weakref import WeakSet

from stoker.contract.manifest import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from stoker.tinker.checkpoints import CheckpointPath, Checkpoints
from stoker.tinker.refusals import RefusedError
from stoker.tinker.samplers import Samplers

_MOST = 64


@dataclass(slots=True, eq=False, weakref_slot=True)
class SampleSource:
    """The weights of a checkpoint.

    Attributes:
        place: the checkpoint; None once it has other weights.
        version: what samplers call the weights; empty while they do not have them.
        uses: requests that are under way.
    """

    place: CheckpointPath | None
    version: str = ""
    uses: int = 0


class Sources:
    """The checkpoints that samplers serve. One that has left is published again when it is used.

    Args:
        checkpoints: where checkpoints are.
        samplers: who serves.
        most: checkpoints that are served, unless more are in use.
    """

    def __init__(self, checkpoints: Checkpoints, samplers: Samplers, most: int = _MOST) -> None:
        self._checkpoints, self._samplers, self._most = checkpoints, samplers, most
        self._lock = threading.Lock()
        self._publishing = threading.Lock()
        self._known: WeakSet[SampleSource] = WeakSet()
        self._served: list[SampleSource] = []  # the one that was used last at the end

    def add(self, place: CheckpointPath, version: str) -> None:
        """Note that a checkpoint is served.

        Args:
            place: the checkpoint.
            version: what samplers call its weights.
        """
        with self._lock:
            self._served.append(self._source(place))
            self._served[-1].version = version
        self._let_go()

    def at(self, place: CheckpointPath) -> SampleSource:
        """Return the weights of a checkpoint, which are served by now.

        Raises:
            RefusedError: there is no such checkpoint, or it cannot be published.
        """
        with self._lock:
            source = next((one for one in self._known if one.place == place), None) or self._source(place)
        with self.used(source):
            return source

    @contextmanager
    def used(self, source: SampleSource) -> Iterator[str]:
        """Keep weights served within the block, which is given their version.

        Raises:
            RefusedError: they were overwritten, or cannot be published.
        """
        with self._lock:
            source.uses += 1
            if source in self._served:
                self._served.remove(source)
                self._served.append(source)
        try:
            if not source.version:
                self._publish(source)
            yield source.version
        finally:
            with self._lock:
                source.uses -= 1

    def overwritten(self, place: CheckpointPath) -> None:
        """Note that a checkpoint has other weights now. Clients that sample from those before go on with them."""
        with self._lock:
            for source in self._known:
                if source.place == place:
                    source.place = None

    def _source(self, place: CheckpointPath) -> SampleSource:
        source = SampleSource(place)
        self._known.add(source)
        return source

    def _publish(self, source: SampleSource) -> None:
        with self._publishing:
            if source.version:  # others were faster
                return
            if source.place is None:
                raise RefusedError(
                    "the checkpoint has been overwritten, and samplers no longer have what it was: make a new sampling "
                    "client",
                    404,
                )
            version = self._samplers.publish(partial(copy_adapter, self._checkpoints.find(source.place)))
            self._samplers.wait(version)
            with self._lock:
                source.version = version
                self._served.append(source)
        self._let_go()

    def _let_go(self) -> None:
        with self._lock:
            leaving = [one for one in self._served if not one.uses][: max(0, len(self._served) - self._most)]
            versions = [one.version for one in leaving]
            for one in leaving:
                self._served.remove(one)
                one.version = ""
        for version in versions:
            self._samplers.retract(version)


def copy_adapter(source: Path, target: Path) -> None:
    """Copy what PEFT needs of a checkpoint."""
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        shutil.copyfile(source / name, target / name)
