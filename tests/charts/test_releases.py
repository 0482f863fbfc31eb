"""A release does not break the one before it, unless its version says so; and it is quick and small."""

from __future__ import annotations

import copy
import resource
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from charts.helm import TRAINING_RUNTIMES, Manifest, output, render, template_arguments
from charts.releases import IMMUTABLE, allows_breaks, breaks
from charts.runtimes import runtimes

PREVIOUS = sorted((Path(__file__).parent / "fixtures").glob("training-runtimes-*.tgz"))[-1]


@pytest.fixture(scope="module")
def previous() -> list[Manifest]:
    return runtimes(render(PREVIOUS))


@pytest.fixture(scope="module")
def current() -> list[Manifest]:
    return runtimes(render(TRAINING_RUNTIMES))


def test_nothing_breaks_without_a_version_that_says_so(previous: list[Manifest], current: list[Manifest]) -> None:
    old = yaml.safe_load(output("helm", "show", "chart", PREVIOUS))["version"]
    new = yaml.safe_load((TRAINING_RUNTIMES / "Chart.yaml").read_text())["version"]
    assert allows_breaks(old, new) or breaks(previous, current) == []


def test_the_previous_release_can_be_upgraded_as_it_is(previous: list[Manifest], current: list[Manifest]) -> None:
    """More than the version asks for: with default values nobody has to patch anything."""
    assert breaks(previous, current) == []


def test_every_break_is_found(current: list[Manifest]) -> None:
    """Guards the tests above."""
    for field in IMMUTABLE:
        old, new = copy.deepcopy(current[:1]), copy.deepcopy(current[:1])
        old[0]["spec"]["template"]["spec"][field] = {"before": 1}
        new[0]["spec"]["template"]["spec"][field] = {"after": 1}
        assert breaks(old, new) == [f"{current[0]['metadata']['name']}: {field} changed"]
    without = copy.deepcopy(current[:1])
    without[0]["spec"]["template"]["spec"]["replicatedJobs"][2]["dependsOn"] = []
    assert breaks(current[:1], without) == [f"{current[0]['metadata']['name']}: dependsOn of node changed"]
    assert breaks(current, current[1:]) == [f"{current[0]['metadata']['name']} is gone"]


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [("0.1.0", "0.2.0", True), ("0.1.0", "0.1.1", False), ("1.2.0", "1.3.0", False), ("1.2.0", "2.0.0", True)],
)
def test_a_break_needs_a_major_version_or_before_one_a_minor(old: str, new: str, allowed: bool) -> None:
    assert allows_breaks(old, new) is allowed


def processor_seconds(chart: Path, settings: Sequence[str] = ()) -> float:
    """Return what Helm computes to render a chart, whether or not that was rendered before."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    output("helm", *template_arguments(chart, settings=settings))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_a_runtime_of_the_whole_catalogue_costs_less_than_half_a_chart_with_one(previous: list[Manifest]) -> None:
    assert len(previous) == 1
    whole = ['names.style="both"', "policies.enabled=true"]
    count = len(runtimes(render(TRAINING_RUNTIMES, settings=whole)))
    assert processor_seconds(TRAINING_RUNTIMES, whole) / count < processor_seconds(PREVIOUS) / 2
