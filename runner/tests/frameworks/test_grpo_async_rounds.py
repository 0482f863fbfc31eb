"""Whose samples the identity guard judges: each sampler in time, however few steps have samples of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import cache
from itertools import pairwise

import pytest

from stoker.frameworks.trl.asynchronous.rounds import Rounds
from stoker.rollouts.replicas import weight

EVERY = 16
FOUR = [f"sampler-{number}" for number in range(4)]
Writers = Callable[[int], set[str]]


@cache
def two_groups(step: int) -> set[str]:
    """Return who writes the two groups of a step, as a fleet of four chooses it."""
    return {max(FOUR, key=lambda name: weight(group, name)) for group in (2 * step, 2 * step + 1)}


def looks(rounds: Rounds, steps: Iterable[int], writers: Writers, faulty: str = "") -> dict[int, set[str]]:
    """Return who is judged in each step that has a look, up to the one that finds a sampler at fault twice."""
    found: dict[int, set[str]] = {}
    for step in steps:
        there = writers(step)
        rounds.see(step, there)
        due = {name for name in there if rounds.is_due(name, step, -1)}
        if due:
            found[step] = due
            if rounds.judged(step, dict.fromkeys(due, step), due & {faulty}):
                break
    return found


def test_samplers_that_write_for_every_step_are_judged_together_once_within_the_promise() -> None:
    found = looks(Rounds(EVERY), range(100), lambda step: {*FOUR})
    assert found == {step: {*FOUR} for step in range(0, 100, EVERY - 1)}


@pytest.mark.parametrize("faulty", FOUR)
def test_one_faulty_sampler_of_four_is_found_twice_within_sixteen_steps(faulty: str) -> None:
    until_now = Rounds(EVERY)
    for first in range(200):
        if faulty in two_groups(first):
            last = max(looks(deepcopy(until_now), range(first, first + 100), two_groups, faulty))
            there = [step for step in range(first, last + 1) if faulty in two_groups(step)]
            away = max(after - before for before, after in pairwise(there))
            # What is away for most of these steps cannot be seen twice in them.
            assert last - first < EVERY or away > EVERY // 2, f"its first bad samples are those of step {first}"
        looks(until_now, [first], two_groups)


@pytest.mark.parametrize("pause", range(1, EVERY))
def test_a_sampler_that_some_steps_have_no_samples_of_is_found_in_time(pause: int) -> None:
    def writers(step: int) -> set[str]:
        return {"steady"} if step % pause else {"steady", "rare"}

    until_now = Rounds(EVERY)
    for first in range(60):
        if not first % pause:
            assert max(looks(deepcopy(until_now), range(first, first + 100), writers, "rare")) - first < EVERY
        looks(until_now, [first], writers)


def test_a_few_groups_do_not_have_every_step_looked_at() -> None:
    found = looks(Rounds(EVERY), range(400), two_groups)
    judged = [sum(name in due for due in found.values()) for name in FOUR]
    assert max(judged) <= 400 / (EVERY // 2 - 1)


def test_a_suspicion_waits_for_the_sampler_and_ends_with_a_clean_look() -> None:
    rounds = Rounds(EVERY)
    assert rounds.judged(0, {"a": 0, "b": 0}, {"a"}) == set()
    for step in range(1, 40):
        rounds.see(step, {"b"})
        assert not rounds.judged(step, {"b": step}, set())
    rounds.see(40, {"a", "b"})
    assert rounds.is_due("a", 40, -1)
    assert not rounds.is_due("b", 40, -1)
    assert rounds.judged(40, {"a": 40}, {"a"}) == {"a"}
    assert rounds.judged(41, {"a": 41}, set()) == set()
    assert rounds.judged(42, {"a": 42}, {"a"}) == set()


def test_two_samplers_at_fault_once_each_are_not_one_at_fault_twice() -> None:
    rounds = Rounds(EVERY)
    assert rounds.judged(0, dict.fromkeys("ab", 0), {"a"}) == set()
    assert rounds.judged(1, dict.fromkeys("ab", 1), {"b"}) == set()
    assert rounds.judged(2, dict.fromkeys("ab", 2), {"b"}) == {"b"}


def test_what_a_sampler_can_seldom_be_judged_with_is_not_left_out() -> None:
    rounds = Rounds(EVERY)
    rounds.see(10, {"a"})
    rounds.judged(10, {"a": 8}, set())
    assert not rounds.is_due("a", 11, 8)
    assert rounds.is_due("a", 11, 9)


def test_a_copy_is_lacking_before_a_look_unless_samples_of_one_still_come() -> None:
    rounds = Rounds(EVERY)
    assert rounds.lack(0, 4, -1), "at first nobody is known"
    assert not rounds.lack(0, 4, 0), "what version 0 writes is on its way"
    rounds.see(0, {"a"})
    rounds.judged(0, {"a": 0}, set())
    assert not rounds.lack(1, 5, 0)
    assert rounds.lack(11, 15, -1)
    assert not rounds.lack(12, 16, 11)
    rounds.see(12, {"a"})
    rounds.judged(12, {"a": 11}, {"a"})
    assert rounds.lack(12, 13, 11), "a suspicion does not wait"


def test_a_sampler_that_is_gone_is_not_waited_for() -> None:
    rounds = Rounds(EVERY)
    rounds.see(0, {"a", "gone"})
    rounds.judged(0, dict.fromkeys(("a", "gone"), 0), set())
    for step in range(1, 31):
        rounds.see(step, {"a"})
        if rounds.is_due("a", step, -1):
            rounds.judged(step, {"a": step}, set())
    assert rounds.present(10) == 2
    assert rounds.present(30) == 1
    assert not rounds.lack(30, 35, -1)
