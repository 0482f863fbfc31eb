"""The choice of a batch equals two others, written differently; and it costs little per group."""

from __future__ import annotations

import math
import random
from itertools import combinations, product

import pytest

from stoker.contract.exits import ExitCode, RunError
from stoker.rollouts.records import Bounds
from stoker.rollouts.schedule import Outstanding, Places, Schedule, TrainedOrdinals, seed_of, shuffled, steps_for

# Deadline, ordinal, and whether it is written.
State = list[tuple[int, int, bool]]


def choose_by_layers(groups: State, step: int, batch: int) -> list[int] | None:
    """Choose as the definition says: per deadline, as many as must go now; then the oldest that are ready."""
    chosen: list[int] = []
    left: list[tuple[int, bool]] = []
    seen = 0
    for deadline in sorted({deadline for deadline, _, _ in groups}):
        layer = sorted((ordinal, ready) for at, ordinal, ready in groups if at == deadline)
        left += layer
        seen += len(layer)
        while len(chosen) < seen - (deadline - step) * batch:
            pick = next((one for one in left if one[1]), None)
            if pick is None:
                return None
            left.remove(pick)
            chosen.append(pick[0])
    chosen += [ordinal for ordinal, ready in left if ready][: batch - len(chosen)]
    return chosen if len(chosen) == batch else None


def choose_by_trying(groups: State, step: int, batch: int) -> list[int] | None:
    """Choose the first batch of ready groups, in order of deadlines, after which the rest can still be in time."""
    ready = [ordinal for _, ordinal, written in sorted(groups) if written]
    for chosen in combinations(ready, batch):
        rest = [deadline for deadline, ordinal, _ in groups if ordinal not in chosen]
        if all(sum(other <= deadline for other in rest) <= (deadline - step) * batch for deadline in rest):
            return list(chosen)
    return None


def outstanding(groups: State) -> Outstanding:
    """Return a state as the schedule has it."""
    held = Outstanding()
    for deadline, ordinal, ready in groups:
        held.add(ordinal, deadline)
        if ready:
            held.finish(ordinal)
    return held


def any_state(draw: random.Random, most: int) -> tuple[State, int, int]:
    """Return a state, a step and a batch size; whether the step can be trained is left to chance."""
    step, batch = draw.randint(0, 5), draw.randint(1, 4)
    share = draw.choice([0.3, 0.7, 0.95, 1.0])
    deadlines = [step + draw.randint(0, draw.choice([1, 4])) for _ in range(draw.randint(0, most))]
    ordinals = draw.sample(range(100), len(deadlines))
    pairs = zip(deadlines, ordinals, strict=True)
    return [(deadline, ordinal, draw.random() < share) for deadline, ordinal in pairs], step, batch


@pytest.mark.parametrize("states", [5_000, pytest.param(100_000, marks=pytest.mark.full)])
def test_the_choice_is_the_one_of_the_definition(states: int) -> None:
    trained = 0
    for number in range(states):
        groups, step, batch = any_state(random.Random(number), 20)
        expected = choose_by_layers(groups, step, batch)
        held = outstanding(groups)
        complete = held.complete(step, batch)
        chosen = held.choose(step, batch)
        assert chosen == (None if expected is None else sorted(expected)), (groups, step, batch)
        assert complete == (chosen is not None)
        assert len(held) == len(groups) - len(chosen or [])
        trained += chosen is not None
    assert states / 10 < trained < states * 9 / 10


def test_the_choice_waits_only_if_every_batch_would_leave_one_too_late() -> None:
    for number in range(3_000):
        groups, step, batch = any_state(random.Random(number), 8)
        expected = choose_by_trying(groups, step, batch)
        assert outstanding(groups).choose(step, batch) == (None if expected is None else sorted(expected)), number


def test_a_batch_waits_for_the_groups_at_their_deadline() -> None:
    held = outstanding([(5, 0, False), (5, 1, True), (6, 2, True), (6, 3, True)])
    assert held.awaited(5, 2) == (True, [0])
    assert held.awaited(4, 2) == (False, [0])
    held = outstanding([(9, 0, False), (9, 1, False), (9, 2, True)])
    assert held.awaited(5, 2) == (False, [0, 1])
    assert outstanding([]).awaited(5, 2) == (False, [])


class Counted(int):
    """An ordinal that counts how often ordinals were compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)


@pytest.mark.parametrize("batch", [16, 128, 1024])
def test_a_group_costs_a_few_comparisons_however_many_there_are(batch: int) -> None:
    draw, held, steps, ahead = random.Random(1), Outstanding(), 10, 4
    Counted.compared = 0
    waiting: list[int] = []
    ordinals = iter(range(batch * (steps + ahead)))
    for step in range(steps):
        while len(held) < ahead * batch:
            ordinal = Counted(next(ordinals))
            held.add(ordinal, step + ahead - 1)
            waiting.append(ordinal)
        draw.shuffle(waiting)
        while not held.complete(step, batch):
            held.finish(waiting.pop())
        held.choose(step, batch)
    assert Counted.compared / (steps * batch) < 6 * math.log2(ahead * batch)


def test_only_what_may_be_trained_in_time_is_started() -> None:
    schedule = Schedule(Bounds(batch=4, staleness=2, depth=2), steps=10)
    assert schedule.admit() == []
    schedule.usable(0)
    assert [(start.ordinal, start.version, start.deadline) for start in schedule.admit()] == [
        (ordinal, 0, 2) for ordinal in range(12)
    ]
    for step in range(3):
        schedule.begin(step)
        for ordinal in range(4 * step, 4 * step + 4):
            schedule.finish(ordinal)
        assert schedule.take() == [*range(4 * step, 4 * step + 4)]
        # Version 0 is the newest still: what it would write now could not be trained in time.
        assert schedule.admit() == []
    schedule.begin(3)
    assert schedule.admit() == []
    schedule.usable(2)
    assert [start.deadline for start in schedule.admit()] == [4] * 8


def test_an_older_version_changes_nothing() -> None:
    schedule = Schedule(Bounds(1, 4), steps=3)
    schedule.usable(3)
    schedule.usable(2)
    assert schedule.version == 3


def test_a_smaller_depth_drops_nothing() -> None:
    schedule = Schedule(Bounds(2, 4), steps=9)
    schedule.usable(0)
    assert len(schedule.admit()) == 10
    schedule.depth = 1
    assert schedule.admit() == []
    assert len(schedule.outstanding) == 10


def test_after_a_resume_only_the_untrained_are_started() -> None:
    schedule = Schedule(Bounds(2, 2, depth=1), steps=5, step=2, trained=TrainedOrdinals(2, [3, 6]))
    schedule.usable(2)
    assert [start.ordinal for start in schedule.admit()] == [2, 4, 5, 7]


@pytest.mark.parametrize("step", [1, 3, 9])
def test_a_step_out_of_order_is_refused(step: int) -> None:
    schedule = Schedule(Bounds(2, 0), steps=5, step=2, trained=TrainedOrdinals(4))
    with pytest.raises(RunError, match=f"at step {step}, but step 2 of 5 is next") as refused:
        schedule.begin(step)
    assert refused.value.code is ExitCode.CRASHED


def test_a_run_has_no_batch_after_its_last_step() -> None:
    with pytest.raises(RunError, match="at step 5"):
        Schedule(Bounds(2, 0), steps=5, step=5, trained=TrainedOrdinals(10)).begin(5)


def test_the_frontier_moves_over_what_is_trained() -> None:
    trained = TrainedOrdinals()
    for ordinal in (0, 3, 2, 5):
        trained.add(ordinal)
    assert (trained.frontier, trained.above) == (1, (2, 3, 5))
    assert [ordinal for ordinal in range(7) if ordinal in trained] == [0, 2, 3, 5]
    trained.add(1)
    assert (trained.frontier, trained.above) == (4, (5,))


def test_each_epoch_has_each_row_in_an_order_of_its_own() -> None:
    places = Places(7, shuffled(7, seed=1))
    found = [places.find(ordinal) for ordinal in range(21)]
    assert [epoch for epoch, _ in found] == [0] * 7 + [1] * 7 + [2] * 7
    orders = [[row for _, row in found[start : start + 7]] for start in (0, 7, 14)]
    assert all(sorted(order) == [*range(7)] for order in orders)
    assert len({*map(tuple, orders)}) == 3
    # A run of today must resume with the runner of tomorrow.
    assert orders[0] == [5, 6, 1, 2, 3, 4, 0]


def test_each_answer_has_a_seed_of_its_own_that_servers_take() -> None:
    seeds = {seed_of(*which) for which in product((0, 1), (-1, 0, 11), (0, 1), (0, 1))}
    assert len(seeds) == 24
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of(42, 7, 3, 0) == 8255210082538294309


@pytest.mark.parametrize(
    ("rows", "epochs", "batch", "steps"), [(100, 2, 2, 100), (100, 1, 16, 7), (5, 0.5, 2, 2), (1, 1, 8, 1)]
)
def test_the_last_batch_is_filled_up(rows: int, epochs: float, batch: int, steps: int) -> None:
    assert steps_for(rows, epochs, batch) == steps
