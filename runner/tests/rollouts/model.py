"""A discrete-event model of a run: samplers with few places, a trainer, a publisher; all durations drawn.

It has the schedule decide, and checks at each step what must hold for every run. Time is in seconds of the model.
"""

from __future__ import annotations

import json
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any

from stoker.rollouts.depth import Depth
from stoker.rollouts.lag import Lag
from stoker.rollouts.records import Bounds
from stoker.rollouts.schedule import GroupStart, Places, Schedule, TrainedOrdinals, shuffled, steps_for

Drawn = Callable[[], float]


@dataclass(frozen=True)
class World:
    """What a run meets: bounds, data, and how long everything takes."""

    bounds: Bounds
    rows: int
    steps: int
    places: int
    write: Drawn
    train: Drawn
    publish: Drawn
    # Probability that the sampler of a group is lost while it writes; the group then begins anew.
    lost: float = 0.0
    save_every: int = 3


def any_world(draw: random.Random) -> World:
    """Return a world as no run would like it."""
    publish_every = draw.choice([1, 1, 1, 2, 3, 5])
    deepest = draw.choice([0, 1, 2, 4, 8])
    staleness = publish_every - 1 + deepest
    depth = draw.choice([None, draw.randint(0, deepest)])
    bounds = Bounds(draw.randint(1, 6), staleness, depth, publish_every)
    rows, epochs = draw.randint(1, 30), draw.choice([1, 1, 2, 3])
    scale, spread = draw.choice([0.01, 1.0, 10.0]), draw.choice([0.0, 0.5, 1.5, 2.5])
    slow = draw.choice([0.0, 0.1, 1.0, 20.0])
    return World(
        bounds,
        rows,
        steps_for(rows, epochs, bounds.batch),
        draw.randint(1, 4 * bounds.batch),
        lambda: scale * draw.lognormvariate(0, spread),
        lambda: draw.expovariate(1),
        lambda: slow * draw.random(),
        draw.choice([0.0, 0.0, 0.1, 0.5]),
        draw.randint(1, 5),
    )


class Run:
    """One life of a run, and those before it: what they trained that was not rolled back."""

    def __init__(self, world: World, draw: random.Random, make: type[Schedule] = Schedule) -> None:
        """Begin a run from nothing."""
        self.world = world
        self.draw = draw
        self.make = make
        # Ordinals and versions that each step trained, of the history that survived.
        self.trained: list[list[tuple[int, int]]] = []
        self.waited: list[float] = []
        self.depths: list[int] = []
        self.saved = json.dumps({"step": 0, "frontier": 0, "above": [], "depth": 1})
        self.now = 0.0
        self.revive()

    def revive(self) -> None:
        """Begin a life where the last checkpoint was; whatever was under way is gone."""
        saved = json.loads(self.saved)
        bounds = self.world.bounds
        trained = TrainedOrdinals(saved["frontier"], saved["above"])
        self.schedule = self.make(bounds, self.world.steps, step=saved["step"], trained=trained)
        self.depth = Depth(bounds.deepest, saved["depth"]) if bounds.depth is None else None
        if self.depth:
            self.schedule.depth = self.depth.value
        self.lag = Lag(bounds.publish_every)
        del self.trained[saved["step"] :]
        self.events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self.numbers = count()
        self.queue: deque[GroupStart] = deque()
        self.writing: dict[int, GroupStart] = {}
        self.versions: dict[int, int] = {}
        self.asked_at: float | None = None
        self.taken_at: float | None = None
        self.published = self.now
        self.publish(saved["step"])
        self.ask()

    def play(self, until: float = float("inf")) -> bool:
        """Go on until a time; return whether the run has finished."""
        while self.schedule.step < self.world.steps or self.asked_at is not None:
            assert self.events, f"step {self.schedule.step} waits and nothing will happen"
            if self.events[0][0] > until:
                self.now = until
                return False
            self.now, _, act, what = heappop(self.events)
            act(what)
        return True

    def after(self, seconds: float, act: Callable[[Any], None], what: Any) -> None:
        """Have something happen later."""
        heappush(self.events, (self.now + seconds, next(self.numbers), act, what))

    def publish(self, version: int) -> None:
        """Publish a version; one after the other."""
        self.published = max(self.published, self.now) + self.world.publish()
        self.after(self.published - self.now, self.usable, version)

    def usable(self, version: int) -> None:
        """Every sampler has a version."""
        self.schedule.usable(version)
        self.lag.come(version, self.now)
        self.dispatch()

    def dispatch(self) -> None:
        """Start what may be started, as far as samplers have places."""
        starts = self.schedule.admit()
        self.versions.update((start.ordinal, start.version) for start in starts)
        self.queue.extend(starts)
        while self.queue and len(self.writing) < self.world.places:
            start = self.queue.popleft()
            self.writing[start.ordinal] = start
            lost = self.draw.random() < self.world.lost
            self.after(self.world.write(), self.lose if lost else self.write, start)

    def lose(self, start: GroupStart) -> None:
        """The sampler of a group is lost."""
        del self.writing[start.ordinal]
        self.queue.appendleft(start)
        self.dispatch()

    def write(self, start: GroupStart) -> None:
        """A group is written."""
        del self.writing[start.ordinal]
        self.schedule.finish(start.ordinal)
        self.dispatch()
        self.take()

    def ask(self) -> None:
        """The trainer asks for its next batch."""
        step = self.schedule.step
        self.schedule.begin(step, version_comes=self.lag.ask(step, self.schedule.version, self.now))
        self.asked_at = self.now
        self.dispatch()
        self.take()

    def take(self) -> None:
        """The trainer trains a batch, if it waits for one and it is complete."""
        step = self.schedule.step
        if self.asked_at is None or (chosen := self.schedule.take()) is None:
            return
        waited, self.asked_at = self.now - self.asked_at, None
        self.waited.append(waited)
        self.depths.append(self.schedule.depth)
        if self.depth and self.taken_at is not None:
            self.schedule.depth = self.depth.record(waited, self.now - self.taken_at)
        self.taken_at = self.now
        batch = [(ordinal, self.versions.pop(ordinal)) for ordinal in chosen]
        bounds = self.world.bounds
        assert len(batch) == bounds.batch
        assert all(0 <= step - version <= bounds.staleness for _, version in batch), f"too old at step {step}: {batch}"
        assert len(self.trained) == step
        self.trained.append(batch)
        if not bounds.staleness:
            assert not self.writing, "synchronous: nothing is written while the trainer learns"
            assert not self.queue
            assert chosen == [*range(step * bounds.batch, (step + 1) * bounds.batch)]
        self.dispatch()
        self.after(self.world.train(), self.learn, step)

    def learn(self, step: int) -> None:
        """A step is done."""
        done = step + 1
        if done % self.world.save_every == 0:
            trained = self.schedule.trained
            kept = {"step": done, "frontier": trained.frontier, "above": trained.above, "depth": self.schedule.depth}
            self.saved = json.dumps(kept)
        if done < self.world.steps:
            if done % self.world.bounds.publish_every == 0:
                self.publish(done)
            self.ask()

    def check(self) -> None:
        """Check a finished run: every group was trained once, and every row once per epoch."""
        world = self.world
        ordinals = [ordinal for batch in self.trained for ordinal, _ in batch]
        assert sorted(ordinals) == list(range(world.steps * world.bounds.batch))
        assert not len(self.schedule.outstanding), "started, but neither trained nor under way"
        places = Places(world.rows, shuffled(world.rows, 7))
        seen = Counter(places.find(ordinal) for ordinal in sorted(ordinals))
        assert set(seen.values()) == {1}
        whole = world.steps * world.bounds.batch // world.rows
        assert {(epoch, row) for epoch in range(whole) for row in range(world.rows)} <= seen.keys()
