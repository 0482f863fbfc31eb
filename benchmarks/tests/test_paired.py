"""Pairs alternate, say how far they are, and come out as ratios within the pairs."""

from __future__ import annotations

import argparse

import pytest
from benchmarks.paired import difference_line, highest, ratio_line, run_pairs, seconds, verdict, whole


def test_sides_alternate_and_each_pair_has_them_in_order() -> None:
    order = []

    def run(side: str, number: int) -> str:
        order.append((side, number))
        return f"{side}{number}"

    assert list(run_pairs(3, ("a", "b"), run)) == [("a0", "b0"), ("a1", "b1"), ("a2", "b2")]
    assert order == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]


def test_a_goal_is_met_by_the_median() -> None:
    assert verdict("at least", 0.98, [0.5, 0.98, 2.0]) == ", goal at least 0.98: met"
    assert verdict("at least", 0.98, [0.97, 0.97, 2.0]) == ", goal at least 0.98: not met"
    assert verdict("at most", 20, [7, 20, 32], " ms") == ", goal at most 20 ms: met"
    assert verdict("at most", 20, [7, 21, 32], " ms") == ", goal at most 20 ms: not met"


def test_each_run_is_told_before_and_after(capsys: pytest.CaptureFixture[str]) -> None:
    """A benchmark that is silent for minutes cannot be told from one that hangs."""
    said = []

    def run(side: str, number: int) -> float:
        said.append(capsys.readouterr().err)
        return 1.5

    list(run_pairs(2, ("a", "b"), run))
    said.append(capsys.readouterr().err)
    lines = [[line.split(" ", 2)[2] for line in text.splitlines()] for text in said]
    assert lines == [
        ["pair 1 of 2: a runs"],
        ["pair 1 of 2: a: 1.5", "pair 1 of 2: b runs"],
        ["pair 1 of 2: b: 1.5", "pair 2 of 2: b runs"],
        ["pair 2 of 2: b: 1.5", "pair 2 of 2: a runs"],
        ["pair 2 of 2: a: 1.5"],
    ]
    assert all(line.startswith("[benchmark] ") for text in said for line in text.splitlines())


def test_pairs_are_there_as_soon_as_they_are_complete() -> None:
    def run(side: str, number: int) -> int:
        if number == 1:
            raise ValueError("lost")
        return number

    pairs = run_pairs(3, ("a", "b"), run)
    assert next(pairs) == (0, 0)
    with pytest.raises(ValueError, match="lost"):
        next(pairs)


def test_the_ratio_is_the_median_within_the_pairs() -> None:
    """Not the ratio of the medians, which a machine that grows slower would change."""
    line = ratio_line("time", ("a", "b"), [(1.0, 2.0), (8.0, 4.0), (9.0, 9.0)], " s")
    assert " ".join(line.split()) == "time a 8.00 s, b 4.00 s, ratio 1.000 (0.500 to 2.000) of 3 pairs"


def test_the_difference_is_the_median_within_the_pairs() -> None:
    line = difference_line("time", ("a", "b"), [(1.0, 2.0), (8.0, 4.0), (9.0, 9.0)], " ms")
    assert " ".join(line.split()) == "time a 8.00 ms, b 4.00 ms, difference 0.00 ms (-1.00 to 4.00) of 3 pairs"


def test_the_highest_of_few_is_the_largest() -> None:
    assert highest([3.0, 1.0, 2.0]) == 3.0
    assert highest([float(number) for number in range(1, 201)]) == 198.0


@pytest.mark.parametrize("text", ["-1", "0", "x", "1.5", "", "²"])
def test_a_number_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a whole number, 1 or more: "):
        whole(1)(text)


@pytest.mark.parametrize("text", ["-1", "0", "x", "inf", "nan", ""])
def test_seconds_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a positive number of seconds: "):
        seconds(text)
