"""Every name that Helm lets a release have makes objects that Kubernetes takes, and no two releases make the same."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from charts.api_groups import CUSTOM, group
from charts.everything import MORE, VALUES
from charts.helm import CHARTS, TRAINING_RUNTIMES, Manifest, manifests, output, templates
from charts.runtimes import KINDS

LONG = "a-name-that-is-as-long-as-helm-lets-a-release-have"
FEW = ("1234", "a.b", "a-b", f"{LONG}-1", f"{LONG}-2")
OTHERS = ("true", "null", "1e3", "0x1f", "2024-01-01", "9.lives")
SEVERAL = pytest.mark.parametrize(
    "names", [FEW, pytest.param((*FEW, *OTHERS), marks=pytest.mark.full)], ids=["few", "all"]
)

DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
"""What a Service is called: it begins with a letter and has no dot."""
DNS_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")


@cache
def rendered(chart: Path, release: str, namespace: str = "default") -> list[Manifest]:
    """Return the objects of a release with all that the chart has."""
    words = ["--values", str(VALUES[chart]), "--set", "skipApiCheck=true", "--namespace", namespace]
    more = [word for setting in MORE[chart] for word in ("--set-json", setting)]
    return manifests(output("helm", "template", release, chart, *words, *more))


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: str(chart.name))
def test_a_release_here_has_objects_of_all_kinds(chart: Path) -> None:
    """Guards the tests below. Two kinds stand instead of another, and the pod of `helm test` makes the TrainJob."""
    kinds = {kind for path in templates(chart) for kind in re.findall(r"^kind: (\w+)$", path.read_text(), re.M)}
    left_out = {"HorizontalPodAutoscaler", "TrainingRuntime", "TrainJob"}
    assert kinds - {item["kind"] for item in rendered(chart, "a-b")} <= left_out


@pytest.mark.parametrize("release", [*FEW, *(pytest.param(name, marks=pytest.mark.full) for name in OTHERS)])
@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: str(chart.name))
def test_kubernetes_takes_the_objects_of_every_release(chart: Path, release: str) -> None:
    objects = rendered(chart, release)
    assert objects
    for item in objects:
        name = item["metadata"]["name"]
        assert isinstance(name, str), f"{item['kind']} {name!r}"
        assert (DNS_LABEL if item["kind"] == "Service" else DNS_NAME).fullmatch(name), f"{item['kind']} {name}"
        for key, value in labels(item):
            assert isinstance(value, str), f"{item['kind']} {name}: {key}={value!r}"
            assert LABEL.fullmatch(value), f"{item['kind']} {name}: {key}={value}"
        if item["kind"] not in KINDS and group(item) not in CUSTOM:
            kubernetes_validate.validate(item, "1.36", strict=True)


def labels(node: Any) -> list[tuple[str, Any]]:
    """Return all labels in an object: its own, those of pods that it makes, and those that it selects by."""
    if isinstance(node, list):
        return [pair for item in node for pair in labels(item)]
    if not isinstance(node, dict):
        return []
    own = [pair for key in ("labels", "matchLabels") for pair in node.get(key, {}).items()]
    return own + [pair for value in node.values() for pair in labels(value)]


@SEVERAL
@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: str(chart.name))
def test_no_two_releases_make_the_same_object(chart: Path, names: tuple[str, ...]) -> None:
    """In one namespace; but for runtimes, which are called what users write in their TrainJobs."""
    made = [
        {(item["kind"], item["metadata"]["name"]) for item in rendered(chart, name) if item["kind"] not in KINDS}
        for name in names
    ]
    assert all(made)
    assert len(set().union(*made)) == sum(map(len, made))


def test_no_two_releases_of_one_name_make_the_same_policy() -> None:
    """Policies belong to no namespace."""
    names = [
        {item["metadata"]["name"] for item in rendered(TRAINING_RUNTIMES, "one", namespace) if "Policy" in item["kind"]}
        for namespace in ("team-a", "team-b")
    ]
    assert names[0]
    assert not names[0] & names[1]


@SEVERAL
def test_a_test_trainjob_of_every_release_has_room_for_what_kubernetes_adds(names: tuple[str, ...]) -> None:
    named = re.compile(r'"name":"(test-[^"]+)"')
    found = [set(named.findall(str(rendered(TRAINING_RUNTIMES, name)))) for name in names]
    assert all(len(jobs) == 1 for jobs in found)
    assert len(set().union(*found)) == len(names)
    assert all(len(job) <= 33 and DNS_LABEL.fullmatch(job) for jobs in found for job in jobs)
