"""Draws a figure as SVG that stands in a page, without a library and without a script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stoker.report.figures import Figure, Series
from stoker.report.text import shown

_WIDTH, _HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 14, 12, 28
_TICKS = 5
# So few points are marked, because a line hides where they are.
_MARKED = 40


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: where a value of the data lies on it.

    Attributes:
        low: the least value.
        high: the largest value.
        begin: place of the least value.
        end: place of the largest value.
    """

    low: float
    high: float
    begin: float
    end: float

    def place(self, value: float) -> float:
        """Return the place of a value."""
        return self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin)

    def ticks(self, whole: bool = False) -> list[float]:
        """Return round values between the ends.

        Args:
            whole: only whole numbers.
        """
        step = _round_step((self.high - self.low) / _TICKS)
        if whole:
            step = max(1.0, step)
        first = math.ceil(self.low / step)
        return [step * number for number in range(first, math.floor(self.high / step) + 1)]


def axis_over(values: Sequence[float], begin: float, end: float) -> Axis:
    """Return an axis with room for these values, of which there is at least one."""
    low, high = min(values), max(values)
    # Values that hardly differ would be noise of the numerics, drawn as a mountain.
    least = max(abs(low), abs(high)) * 1e-9 or 1.0
    if high - low < least:
        room = max(abs(low) * 0.1, least)
        low, high = low - room, high + room
    return Axis(low, high, begin, end)


def _round_step(step: float) -> float:
    size: float = 10.0 ** math.floor(math.log10(step))
    return next(size * factor for factor in (1, 2, 5, 10) if size * factor >= step * 0.999)


def draw(figure: Figure) -> str:
    """Return the figure's picture, as one element `svg`."""
    points = [point for series in figure.series for point in series.points]
    across = axis_over([step for step, _ in points], _LEFT, _WIDTH - _RIGHT)
    upward = axis_over([value for _, value in points], _HEIGHT - _BOTTOM, _TOP)
    unit = f" in {figure.unit}" if figure.unit else ""
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{shown(f"{figure.title}{unit} by step")}">',
        *_grid(across, upward),
        *(_line(series, across, upward) for series in figure.series),
        "</svg>",
    ]
    return "\n".join(parts)


def key(series: Series) -> str:
    """Return a small piece of a line, for a legend."""
    return f'<svg class="key" viewBox="0 0 24 8" aria-hidden="true"><path class="s{series.style}" d="M0 4H24"/></svg>'


def _grid(across: Axis, upward: Axis) -> list[str]:
    parts = []
    for value in upward.ticks():
        y = upward.place(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text class="y" x="{_LEFT - 6}" y="{y + 4:.1f}">{number(value)}</text>')
    for value in across.ticks(whole=True):
        x = across.place(value)
        parts.append(f'<text class="x" x="{x:.1f}" y="{_HEIGHT - 8}">{number(value)}</text>')
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}"/>')
    return parts


def _line(series: Series, across: Axis, upward: Axis) -> str:
    places = [(across.place(step), upward.place(value)) for step, value in series.points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    marks = places if len(places) <= _MARKED else []
    circles = "".join(f'<circle class="s{series.style}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in marks)
    return f'<path class="s{series.style}" d="{path}"/>{circles}'


def number(value: float) -> str:
    """Return a number as people read it."""
    if abs(value) >= 1e5 and value == int(value) and abs(value) < 1e15:
        for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= size:
                return f"{value / size:.4g}{letter}"
    return f"{value + 0.0:.4g}"
