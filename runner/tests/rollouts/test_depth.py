"""The depth is the smallest that hides the wait, never above the bound, and does not swing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from runner.tests.rollouts.model import Run, World

from stoker.rollouts.depth import Depth
from stoker.rollouts.records import Bounds

STEPS = 200
Seconds = Callable[[random.Random], float]


def played(depth: int | None, write: Seconds, *, places: int = 999, staleness: int = 8, publish_every: int = 1) -> Run:
    """Return a finished run whose steps take a second without the wait."""
    draw = random.Random(1)
    bounds = Bounds(8, staleness, depth, publish_every)
    world = World(bounds, 1000, STEPS, places, lambda: write(draw), lambda: draw.uniform(0.95, 1.05), lambda: 0.05)
    run = Run(world, draw)
    assert run.play()
    return run


def share_waited(run: Run) -> float:
    """Return the part of the time that the trainer waited, without the first steps."""
    waited = run.waited[30:]
    return sum(waited) / (sum(waited) + len(waited))


def smallest_hiding(write: Seconds, deepest: int = 8, **world: int) -> int:
    """Return the smallest fixed depth that hides the wait; the deepest if none does."""
    hiding = (depth for depth in range(1, deepest) if share_waited(played(depth, write, **world)) <= 0.05)
    return next(hiding, deepest)


def steps(run: Run) -> list[int]:
    """Return the depths of the second half of a run."""
    return run.depths[STEPS // 2 :]


@pytest.mark.parametrize(
    ("write", "depth"),
    [
        (lambda draw: draw.uniform(0.3, 0.6), 1),
        (lambda draw: draw.uniform(1.5, 1.9), 2),
        (lambda draw: draw.uniform(3.5, 4.0), 4),
    ],
    ids=["short", "longer", "tools"],
)
def test_it_finds_the_smallest_depth_that_hides_the_wait(write: Seconds, depth: int) -> None:
    assert smallest_hiding(write) == depth
    run = played(None, write)
    assert max(run.depths) == depth
    assert Counter(steps(run))[depth] >= 0.85 * len(steps(run))
    assert share_waited(run) < 0.05


def test_where_tools_wait_it_is_deep_enough_after_a_few_steps() -> None:
    run = played(None, lambda draw: draw.uniform(6.1, 6.9))
    assert min(run.depths[4:30]) >= 6, "each step at the first depth waits as long as three at the right one"
    assert max(run.depths) == 7


def test_it_returns_to_where_it_came_from_when_deeper_does_not_help() -> None:
    depth = Depth(8)
    values = [depth.record(3.0, 4.0) for _ in range(40)]
    assert max(values) > 4
    assert values[-1] == 1


@pytest.mark.parametrize(
    ("staleness", "publish_every", "deepest"), [(3, 1, 3), (8, 1, 8), (6, 4, 3), (1, 1, 1), (0, 1, 0)]
)
def test_it_stays_within_the_bound_where_no_depth_hides_the_wait(
    staleness: int, publish_every: int, deepest: int
) -> None:
    run = played(None, lambda draw: 30.0, staleness=staleness, publish_every=publish_every)
    assert max(run.depths) == deepest
    assert Counter(steps(run)).most_common(1)[0][0] == deepest


def test_it_stays_small_where_samplers_are_busy_anyway() -> None:
    run = played(None, lambda draw: 2.0, places=8)
    assert share_waited(played(8, lambda draw: 2.0, places=8)) > 0.4
    assert max(run.depths) <= 3
    assert run.now < 1.05 * played(8, lambda draw: 2.0, places=8).now


def test_it_goes_back_when_samplers_become_quick() -> None:
    left = [8 * STEPS // 2]

    def write(draw: random.Random) -> float:
        left[0] -= 1
        return 4.0 if left[0] > 0 else 0.2

    run = played(None, write)
    assert max(run.depths) >= 4
    assert run.depths[-1] == 1


def test_what_fails_is_tried_less_and_less_often() -> None:
    depth = Depth(8)
    values = []
    for _ in range(2_000):
        # At depth 1 a tenth of a step is waited for; at depth 2 nothing.
        values.append(depth.value)
        waited = 0.1 if depth.value < 2 else 0.0
        depth.record(waited, 0.9 + waited)
    changes = [step for step, (old, new) in enumerate(pairwise(values)) if old != new]
    assert set(values) == {1, 2}
    assert Counter(values)[2] > 1_900
    assert len(changes) < 30
    gaps = [back - deeper for deeper, back in zip(changes[::2], changes[1::2], strict=False)]
    assert gaps[0] < 40
    assert gaps[-1] > 200


def test_evaluations_and_checkpoints_do_not_hide_a_wait() -> None:
    depth = Depth(8)
    for step in range(40):
        waited = {1: 1.0, 2: 0.5}.get(depth.value, 0.0)
        depth.record(waited, 1.0 + waited + (60.0 if step % 5 == 0 else 0.0))
    assert depth.value == 3


@pytest.mark.parametrize(("deepest", "start", "first"), [(4, 1, 1), (4, 9, 4), (4, 0, 1), (0, 3, 0), (8, 5, 5)])
def test_a_resumed_run_begins_where_it_was(deepest: int, start: int, first: int) -> None:
    assert Depth(deepest, start).value == first
