"""Whatever samplers, trainer, publisher and kills do, a run keeps its promises."""

from __future__ import annotations

import random

import pytest
from runner.tests.rollouts.model import Run, any_world

from stoker.rollouts.records import Bounds
from stoker.rollouts.schedule import GroupStart, Schedule

RUNS = [1_000, pytest.param(100_000, marks=pytest.mark.full)]


@pytest.mark.parametrize("runs", RUNS)
def test_no_sample_is_too_old_and_each_is_trained_once(runs: int) -> None:
    for number in range(runs):
        draw = random.Random(number)
        run = Run(any_world(draw), draw)
        assert run.play()
        run.check()


@pytest.mark.parametrize("runs", RUNS)
def test_after_any_kill_the_surviving_history_has_each_once(runs: int) -> None:
    for number in range(runs):
        draw = random.Random(-1 - number)
        run = Run(any_world(draw), draw)
        for _ in range(draw.randint(1, 4)):
            if run.play(until=run.now + draw.expovariate(0.2)):
                break
            run.revive()
        assert run.play()
        run.check()


class Careless(Schedule):
    """Admits by the number of groups alone."""

    def admit(self) -> list[GroupStart]:
        starts = []
        under_way = (self.depth + 1) * self.bounds.batch - self._training
        while self.version is not None and len(self.outstanding) < under_way:
            if (ordinal := self._following()) is None:
                break
            start = GroupStart(ordinal, self.version, self.version + self.bounds.staleness)
            self.outstanding.add(ordinal, start.deadline)
            starts.append(start)
        return starts


class Hasty(Schedule):
    """Trains what is ready first, whatever is about to be too old."""

    def take(self) -> list[int] | None:
        ready = [ordinal for layer in reversed(self.outstanding._layers) for ordinal in layer.ready]
        if len(ready) < self.bounds.batch:
            return None
        self.outstanding.complete = lambda step, batch: True  # type: ignore[method-assign]
        return super().take()


@pytest.mark.parametrize(("wrong", "seen"), [(Careless, "nothing will happen"), (Hasty, "too old at step")])
def test_the_model_finds_a_schedule_that_is_wrong(wrong: type[Schedule], seen: str) -> None:
    def play() -> None:
        for number in range(1_000):
            draw = random.Random(number)
            Run(any_world(draw), draw, wrong).play()

    with pytest.raises(AssertionError, match=seen):
        play()


def test_bounds_of_all_kinds_are_drawn() -> None:
    bounds = [any_world(random.Random(number)).bounds for number in range(1_000)]
    assert {one.publish_every for one in bounds} == {1, 2, 3, 5}
    assert {one.staleness for one in bounds} >= {0, 1, 2, 4, 8, 12}
    assert {one.depth for one in bounds} >= {None, 0, 8}
    assert any(one.depth == one.deepest > 0 for one in bounds)
    assert Bounds(1, 0) in {Bounds(1, one.staleness) for one in bounds}
