"""What every benchmark does: run two sides in pairs, say how far it is, and print ratios within the pairs."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Result = TypeVar("Result")
_STARTED = time.monotonic()


def whole(least: int) -> Callable[[str], int]:
    """Return what reads a whole number that is not below `least` from the command line."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number, {least} or more: {text!r}")
        return int(text)

    return read


def seconds(text: str) -> float:
    """Read a positive number of seconds from the command line."""
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds: {text!r}")
    return value


def say(text: str) -> None:
    """Print a line of progress with the time since the start, beside the results."""
    minutes, rest = divmod(int(time.monotonic() - _STARTED), 60)
    print(f"[benchmark] {minutes}:{rest:02} {text}", file=sys.stderr, flush=True)


def run_pairs(count: int, sides: tuple[str, str], run: Callable[[str, int], Result]) -> Iterator[tuple[Result, Result]]:
    """Run both sides `count` times and yield each pair; who goes first alternates, and each run is told.

    Args:
        count: pairs.
        sides: the names of the two sides, in the order of each pair.
        run: runs one side, by name and number of the pair, and returns what it measured.
    """
    for number in range(count):
        results = {}
        for side in reversed(sides) if number % 2 else sides:
            say(f"pair {number + 1} of {count}: {side} runs")
            results[side] = run(side, number)
            say(f"pair {number + 1} of {count}: {side}: {results[side]}")
        yield results[sides[0]], results[sides[1]]


def ratio_line(what: str, sides: tuple[str, str], pairs: Sequence[tuple[float, float]], unit: str) -> str:
    """Return the medians of both sides, and the median and the range of the ratios within the pairs, as one line."""
    ratios = [ours / theirs for ours, theirs in pairs]
    return (
        f"{_medians(what, sides, pairs, unit)}, "
        f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}) of {len(pairs)} pairs"
    )


def verdict(goal: str, bound: float, values: Sequence[float], unit: str = "") -> str:
    """Return a goal and whether it is met, for the end of a line.

    Args:
        goal: `at least` or `at most`.
        bound: what the median must reach, or not exceed.
        values: what was measured.
        unit: theirs.
    """
    median = statistics.median(values)
    met = median >= bound if goal == "at least" else median <= bound
    return f", goal {goal} {bound:g}{unit}: {'met' if met else 'not met'}"


def difference_line(what: str, sides: tuple[str, str], pairs: Sequence[tuple[float, float]], unit: str) -> str:
    """Return the same with the differences within the pairs."""
    more = [ours - theirs for ours, theirs in pairs]
    return (
        f"{_medians(what, sides, pairs, unit)}, difference {statistics.median(more):.2f}{unit} "
        f"({min(more):.2f} to {max(more):.2f}) of {len(pairs)} pairs"
    )


def _medians(what: str, sides: tuple[str, str], pairs: Sequence[tuple[float, float]], unit: str) -> str:
    medians = (
        f"{side} {statistics.median(of):.2f}{unit}" for side, of in zip(sides, zip(*pairs, strict=True), strict=True)
    )
    return f"{what:<24} {', '.join(medians)}"


def highest(values: Sequence[float]) -> float:
    """Return what 99 of 100 values do not exceed; the largest of fewer."""
    return sorted(values)[max(0, -(-len(values) * 99 // 100) - 1)]
