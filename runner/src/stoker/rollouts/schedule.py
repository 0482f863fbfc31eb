"""Which groups are written next and which are trained next: pure, without clock, threads or samplers.

Staleness is bounded by what is started, not by throwing work away. A group that is written by version v may be trained
by step v + staleness at the latest: its deadline. A group is started only if all groups under way can still meet their
deadlines (`Schedule.admit`), and a batch takes the earliest deadlines first and leaves nothing behind that could miss
its own (`Outstanding.choose`). So a step waits for slow groups at their deadline alone, nothing is dropped, and with
staleness 0 the run is synchronous.
"""

from __future__ import annotations

import random
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from heapq import heappop, heappush
from math import ceil

from stoker.contract.exits import ExitCode, RunError
from stoker.rollouts.records import Bounds

# Gives the rows of an epoch in the order of training; the same at each call.
Shuffle = Callable[[int], Sequence[int]]


def seed_of(run: int, ordinal: int, index: int, turn: int) -> int:
    """Return the seed of one answer, 63 bits: the run's seed, the group, the sample in it, the turn in the sample."""
    digest = blake2b(f"{run}/{ordinal}/{index}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def shuffled(rows: int, seed: int) -> Shuffle:
    """Return the order of rows that a run with this seed has: another one in each epoch."""

    def order(epoch: int) -> Sequence[int]:
        # `random()` is the one method whose numbers Python promises to keep: a resumed run may have another Python.
        draw = random.Random(f"{seed}/{epoch}").random
        keys = [draw() for _ in range(rows)]
        return sorted(range(rows), key=keys.__getitem__)

    return order


def steps_for(rows: int, epochs: float, batch: int) -> int:
    """Return the steps that train each row once per epoch; the last batch is filled up from the next epoch."""
    return ceil(rows * epochs / batch)


class Places:
    """Finds the epoch and the row of a group by its ordinal."""

    def __init__(self, rows: int, order: Shuffle) -> None:
        self._rows = rows
        # Groups under way are of two epochs, unless an epoch is shorter than what is under way.
        self._order = lru_cache(maxsize=2)(order)

    def find(self, ordinal: int) -> tuple[int, int]:
        """Return the epoch and the row."""
        epoch, place = divmod(ordinal, self._rows)
        return epoch, self._order(epoch)[place]


class TrainedOrdinals:
    """The ordinals that are trained: all below the frontier, and a few above it."""

    def __init__(self, frontier: int = 0, above: Iterable[int] = ()) -> None:
        self.frontier = frontier
        self._above: set[int] = set()
        for ordinal in above:
            self.add(ordinal)

    def add(self, ordinal: int) -> None:
        """Note that a group is trained."""
        self._above.add(ordinal)
        while self.frontier in self._above:
            self._above.remove(self.frontier)
            self.frontier += 1

    def __contains__(self, ordinal: int) -> bool:
        return ordinal < self.frontier or ordinal in self._above

    @property
    def above(self) -> tuple[int, ...]:
        """The trained ordinals above the frontier, in order."""
        return tuple(sorted(self._above))


@dataclass(slots=True)
class _Layer:
    """The groups of one deadline: those still being written, and a heap of those that are ready."""

    deadline: int
    writing: set[int] = field(default_factory=set)
    ready: list[int] = field(default_factory=list)


class Outstanding:
    """The groups that are started and not yet taken for a batch, in layers by deadline.

    There are about as many layers as versions in use, so that no event looks at each group.
    """

    def __init__(self) -> None:
        self._layers: list[_Layer] = []
        self._layer_of: dict[int, _Layer] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, ordinal: int, deadline: int) -> None:
        """Note that a group is started."""
        layer = next((layer for layer in reversed(self._layers) if layer.deadline == deadline), None)
        if layer is None:
            layer = _Layer(deadline)
            insort(self._layers, layer, key=lambda one: one.deadline)
        layer.writing.add(ordinal)
        self._layer_of[ordinal] = layer
        self._size += 1

    def finish(self, ordinal: int) -> None:
        """Note that a group is written."""
        layer = self._layer_of.pop(ordinal)
        layer.writing.remove(ordinal)
        heappush(layer.ready, ordinal)

    def complete(self, step: int, batch: int) -> bool:
        """Return whether the ready groups make a batch that leaves none behind that could miss its deadline."""
        ready = 0
        for layer, lacks in self._lacks(step, batch):
            if lacks:
                return False
            ready += len(layer.ready)
        return ready >= batch

    def choose(self, step: int, batch: int) -> list[int] | None:
        """Remove and return the ordinals to train at this step, in order; None: the step must wait."""
        if not self.complete(step, batch):
            return None
        chosen: list[int] = []
        for layer in self._layers:
            while layer.ready and len(chosen) < batch:
                chosen.append(heappop(layer.ready))
        self._layers = [layer for layer in self._layers if layer.ready or layer.writing]
        self._size -= batch
        return sorted(chosen)

    def awaited(self, step: int, batch: int) -> tuple[bool, list[int]]:
        """Return the unwritten groups that a batch waits for, and whether they are at their deadline.

        At its deadline is a group without which this step, or a later one that has no room for all, would train too
        late. Without such groups, any of those returned completes the batch.
        """
        writing: list[int] = []
        for layer, lacks in self._lacks(step, batch):
            writing += layer.writing
            if lacks:
                return True, writing
        return False, writing

    def _lacks(self, step: int, batch: int) -> Iterable[tuple[_Layer, bool]]:
        """Yield each layer, earliest deadline first, and whether too few are ready up to it.

        The steps after this one can train `batch` groups each. What they cannot train up to a deadline, this one must.
        """
        seen = ready = 0
        for layer in self._layers:
            seen += len(layer.writing) + len(layer.ready)
            ready += len(layer.ready)
            yield layer, min(ready, batch) < seen - (layer.deadline - step) * batch


@dataclass(frozen=True, slots=True, eq=False)
class GroupStart:
    """A group to start, which is equal to itself alone: the same ordinal may be started again.

    Attributes:
        ordinal: the group.
        version: the policy that must write it.
        deadline: the last step that may train it.
    """

    ordinal: int
    version: int
    deadline: int


class Schedule:
    """What a run may start and must train next.

    Attributes:
        bounds: what it keeps to.
        step: the step that trains next.
        version: the newest version that samplers have; None before the first.
        depth: how many batches may be under way beside the one in training. It may change at any time.
        trained: which groups are trained, the batch in training included.
        outstanding: which groups are started and not in a batch yet.
    """

    def __init__(self, bounds: Bounds, steps: int, *, step: int = 0, trained: TrainedOrdinals | None = None) -> None:
        """Begin at a step.

        Args:
            bounds: what to keep to.
            steps: optimizer steps of the whole run.
            step: the first one to train.
            trained: the groups that the steps before it trained.
        """
        self.bounds = bounds
        self.step = step
        self.version: int | None = None
        self.depth = bounds.deepest if bounds.depth is None else bounds.depth
        self.trained = trained or TrainedOrdinals()
        self.outstanding = Outstanding()
        self._end = steps * bounds.batch
        self._next = self.trained.frontier
        self._training = 0
        # The version before whose coming nothing is started.
        self._awaited: int | None = None

    def usable(self, version: int) -> None:
        """Note that samplers have a version. An older one than the newest changes nothing."""
        self.version = version if self.version is None else max(self.version, version)
        if self._awaited is not None and self.version >= self._awaited:
            self._awaited = None

    def begin(self, step: int, *, version_comes: bool = False) -> None:
        """Note that the trainer asks for the batch of a step, so that the batch before is trained.

        Args:
            step: the step.
            version_comes: True if the version of this step is about to come. If the batch is complete, so that nobody
                waits, nothing is started until then, or until the next step at the latest.

        Raises:
            RunError: it is not the next step, or the run has no more; code 70.
        """
        if step != self.step or step * self.bounds.batch >= self._end:
            raise RunError(
                ExitCode.CRASHED,
                f"a batch is asked for at step {step}, but step {self.step} of {self._end // self.bounds.batch} is "
                "next: each optimizer step must take one batch",
            )
        self._training = 0
        self._awaited = step if version_comes and self.complete() else None

    def admit(self) -> list[GroupStart]:
        """Return the groups to start now, which are outstanding from now on."""
        if self.version is None or self._awaited is not None:
            return []
        deadline = self.version + self.bounds.staleness
        batch = self.bounds.batch
        # No group has a later deadline than a new one, so that the rule for it holds for the others too.
        in_time = (deadline - self.step + 1) * batch
        under_way = (self.depth + 1) * batch - self._training
        starts: list[GroupStart] = []
        while len(self.outstanding) < min(in_time, under_way) and (ordinal := self._following()) is not None:
            self.outstanding.add(ordinal, deadline)
            starts.append(GroupStart(ordinal, self.version, deadline))
        return starts

    def finish(self, ordinal: int) -> None:
        """Note that a group is written."""
        self.outstanding.finish(ordinal)

    def complete(self) -> bool:
        """Return whether the next step has its batch."""
        return self.outstanding.complete(self.step, self.bounds.batch)

    def awaited(self) -> tuple[bool, list[int]]:
        """Return what the next step waits for, as `Outstanding.awaited` does."""
        return self.outstanding.awaited(self.step, self.bounds.batch)

    def take(self) -> list[int] | None:
        """Return the ordinals that the next step trains, in order; None while it must wait."""
        chosen = self.outstanding.choose(self.step, self.bounds.batch)
        if chosen is not None:
            self.step += 1
            self._training = len(chosen)
            for ordinal in chosen:
                self.trained.add(ordinal)
        return chosen

    def _following(self) -> int | None:
        """Return the next ordinal that was neither trained nor started; None after the last."""
        while self._next in self.trained:
            self._next += 1
        if self._next >= self._end:
            return None
        self._next += 1
        return self._next - 1
