"""Bounds that contradict each other are refused with the flag to write."""

from __future__ import annotations

import pytest

from stoker.contract.exits import ExitCode, RunError
from stoker.rollouts.records import Bounds, Group


@pytest.mark.parametrize(
    ("bounds", "deepest"),
    [
        (Bounds(8, 0), 0),
        (Bounds(8, 4), 4),
        (Bounds(8, 4, depth=4), 4),
        (Bounds(8, 4, publish_every=5), 0),
        (Bounds(8, 6, depth=2, publish_every=5), 2),
    ],
)
def test_versions_that_come_less_often_leave_less_depth(bounds: Bounds, deepest: int) -> None:
    assert bounds.deepest == deepest


@pytest.mark.parametrize(
    ("depth", "publish_every", "said"),
    [
        (5, 1, "`--max_staleness 4` is too small for `--depth 5` with `--publish_every 1`: write `--max_staleness 5`"),
        (3, 3, "write `--max_staleness 5` or more"),
        (None, 6, "`--max_staleness 4` is too small for `--publish_every 6`: write `--max_staleness 5` or more"),
        (0, 6, "for `--publish_every 6`"),
    ],
)
def test_a_bound_that_cannot_be_kept_is_refused(depth: int | None, publish_every: int, said: str) -> None:
    with pytest.raises(RunError) as refused:
        Bounds(8, 4, depth, publish_every)
    assert refused.value.code is ExitCode.CONFIG
    assert said in refused.value.message


@pytest.mark.parametrize("numbers", [(0, 4), (8, -1), (8, 4, -1), (8, 4, None, 0)])
def test_numbers_that_mean_nothing_are_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least"):
        Bounds(*numbers)


def test_an_evaluation_has_ordinals_of_its_own() -> None:
    assert Group(-1, -1, 0, {}, 3, 3).evaluation
    assert not Group(0, 0, 5, {}, 3, 4).evaluation
