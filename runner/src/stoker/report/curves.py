"""A metric over the steps of a run, and as few points of it as a picture needs."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

# More points than a screen has columns for a picture show nothing more.
MOST_POINTS = 1000


@dataclass(slots=True)
class Curve:
    """A metric's values, by the steps that have one, in their order.

    Attributes:
        steps: the steps.
        values: the value of each.
    """

    steps: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    @property
    def points(self) -> list[tuple[float, float]]:
        """All steps with their values."""
        return [*zip(self.steps, self.values, strict=True)]


def thinned(curve: Curve, most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """Return a curve's points, not more than so many: the first, the last, and the extremes of each stretch between."""
    count = len(curve.values)
    if count <= most:
        return curve.points
    stretches = (most - 2) // 2
    kept = [0]
    for number in range(stretches):
        begin, end = (1 + (count - 2) * place // stretches for place in (number, number + 1))
        stretch = curve.values[begin:end]
        kept += sorted({begin + stretch.index(min(stretch)), begin + stretch.index(max(stretch))})
    kept.append(count - 1)
    return [(curve.steps[index], curve.values[index]) for index in kept]
