"""Curves of long runs: few points, and none of those that matter is lost."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest
from runner.tests.report.hostile import read_page, write_run

from stoker.report.curves import MOST_POINTS, Curve, thinned
from stoker.report.figures import figures_of
from stoker.report.runs import read_run
from stoker.report.svg import axis_over
from stoker.report.write import write_report


def curve_of(*values: float) -> Curve:
    return Curve(array("d", range(1, len(values) + 1)), array("d", values))


@pytest.mark.parametrize("count", [1, 2, 999, 1000, 1001, 1003, 1999, 2500, 100_000])
def test_a_thinned_curve_keeps_its_ends_and_its_extremes(count: int) -> None:
    draw = random.Random(count)
    curve = curve_of(*(draw.random() for _ in range(count)))
    kept = thinned(curve)
    assert len(kept) == min(count, len(kept)) <= MOST_POINTS
    assert kept == sorted(kept)
    assert {*kept} <= {*curve.points}
    assert (kept[0], kept[-1]) == (curve.points[0], curve.points[-1])
    values = [value for _, value in kept]
    assert (min(values), max(values)) == (min(curve.values), max(curve.values))
    if count <= MOST_POINTS:
        assert kept == curve.points


@pytest.mark.parametrize("place", [0, 1, 777, 50_000, 99_998, 99_999])
def test_a_single_spike_is_never_lost(place: int) -> None:
    values = [1.0] * 100_000
    values[place] = 50.0
    assert (place + 1, 50.0) in thinned(curve_of(*values))


def test_the_report_of_a_long_run_is_small(tmp_path: Path) -> None:
    names = ("loss", "learning_rate", "grad_norm", "tokens_per_second", "peak_memory_gib", "mean_token_accuracy")
    draw = random.Random(1)
    write_run(tmp_path, ({"step": step, **{name: draw.random() for name in names}} for step in range(1, 20_001)))
    assert write_report(tmp_path, {})
    text = (tmp_path / "report.html").read_text()
    read_page(text)
    assert len(text) < 150_000
    run = read_run(tmp_path)
    assert run is not None
    assert max(len(series.points) for figure in figures_of(run) for series in figure.series) <= MOST_POINTS


@pytest.mark.parametrize(
    "values",
    [
        (0.0,),
        (5.0, 5.0),
        (-1e150, 1e150),
        (1e-300, 2e-300),
        (1.0, 1.0 + 1e-15),
        (-3.0, -3.0),
        (0.0, 1e-5),
        (99_999, 1e6),
    ],
)
def test_an_axis_has_room_for_any_values(values: tuple[float, ...]) -> None:
    axis = axis_over(values, 100.0, 0.0)
    assert all(-1e-6 <= axis.place(value) <= 100.000001 for value in values)
    assert 1 <= len(axis.ticks()) <= 12
