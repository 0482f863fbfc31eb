"""A version that comes at once is waited for, so that samples are younger; one that comes late is not."""

from __future__ import annotations

import random
from statistics import fmean

import pytest
from runner.tests.rollouts.model import Run, World

from stoker.rollouts.lag import Lag
from stoker.rollouts.records import Bounds
from stoker.rollouts.schedule import Schedule


def played(publish: float, make: type[Schedule] = Schedule, *, every: int = 1, depth: int = 1) -> Run:
    """Return a finished run whose steps take a second and whose groups take half of one."""
    draw = random.Random(1)
    bounds = Bounds(8, depth + every + 3, depth, every)
    run = Run(World(bounds, 500, 60, 99, lambda: draw.uniform(0.3, 0.6), lambda: 1.0, lambda: publish), draw, make)
    assert run.play()
    run.check()
    return run


def staleness(run: Run) -> float:
    """Return the mean staleness of a run, without its first steps."""
    return fmean(step - version for step, batch in enumerate(run.trained) if step > 5 for _, version in batch)


class Eager(Schedule):
    """Starts what it can at once."""

    def begin(self, step: int, *, version_comes: bool = False) -> None:
        super().begin(step)


@pytest.mark.parametrize("depth", [1, 2])
def test_samples_are_a_step_younger_if_versions_come_soon(depth: int) -> None:
    soon, eager = played(0.1, depth=depth), played(0.1, Eager, depth=depth)
    assert staleness(soon) == depth
    assert staleness(eager) == depth + 1
    assert soon.now == pytest.approx(eager.now)


@pytest.mark.parametrize("publish", [0.4, 0.9, 2.5])
def test_a_version_that_comes_late_keeps_nobody(publish: float) -> None:
    late, eager = played(publish), played(publish, Eager)
    assert staleness(late) == staleness(eager)
    assert late.now == pytest.approx(eager.now)


def test_between_versions_nobody_waits_for_one() -> None:
    rare, eager = played(0.1, every=3), played(0.1, Eager, every=3)
    assert staleness(rare) < staleness(eager)
    assert rare.now == pytest.approx(eager.now)


def test_the_lag_is_measured_step_by_step() -> None:
    lag = Lag(publish_every=2)
    assert not lag.ask(0, None, 0.0), "nothing is known yet"
    lag.come(0, 0.1)
    assert not lag.ask(1, 0, 1.0), "this step has no version of its own"
    assert lag.ask(2, 0, 2.0), "the version before came after a tenth of a step"
    assert not lag.ask(3, 0, 3.0)
    assert not lag.ask(4, 0, 4.0), "the version before has not come in a whole step"
    lag.come(2, 4.1)
    assert not lag.ask(5, 2, 5.0)
    assert not lag.ask(6, 2, 6.0), "a version that came late is not the one that was awaited"
    lag.come(6, 6.2)
    lag.ask(7, 6, 7.0)
    assert lag.ask(8, 6, 8.0)
    assert not lag.ask(9, 9, 9.0), "it is there"
    assert not lag.ask(10, 9, 10.0), "versions are counted from the newest"


def test_a_resumed_run_counts_from_its_first_version() -> None:
    lag = Lag(publish_every=5)
    assert not lag.ask(7, 7, 0.0)
    assert not any(lag.ask(step, 7, float(step)) for step in range(8, 12))
    lag.ask(12, 7, 12.0)
    lag.come(12, 12.1)
    assert not any(lag.ask(step, 12, float(step)) for step in range(13, 17))
    assert lag.ask(17, 12, 17.0)
