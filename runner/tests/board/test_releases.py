"""Releases as the chart vllm-serving renders them, and as clusters tell of their state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from runner.tests.board.objects import deployment

from stoker.board.releases import release_of

RENDERED = sorted((Path(__file__).parents[3] / "tests/charts/golden/vllm-serving").glob("*.yaml"))


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: str(path.stem))
def test_each_release_of_the_chart_is_one(path: Path) -> None:
    objects = [found for found in yaml.safe_load_all(path.read_text()) if found and found["kind"] == "Deployment"]
    (release,) = [found for one in objects if (found := release_of(one))]
    assert release.name == "vllm-serving"
    assert release.model
    assert release.state == "Rolling out"


def test_adapters_are_those_of_the_chart() -> None:
    path = next(path for path in RENDERED if path.stem == "full")
    objects = [found for found in yaml.safe_load_all(path.read_text()) if found and found["kind"] == "Deployment"]
    (release,) = [found for one in objects if (found := release_of(one))]
    assert (release.claim, release.folder) == ("adapters", "adapters")
    assert release.origin == "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({}, "Ready"),
        ({"readyReplicas": 1}, "Degraded"),
        ({"readyReplicas": None}, "Starting"),
        ({"updatedReplicas": 1}, "Rolling out"),
        ({"observedGeneration": 0}, "Rolling out"),
        ({"conditions": [{"type": "Progressing", "reason": "ProgressDeadlineExceeded"}]}, "Failing"),
        ({"conditions": [{"type": "ReplicaFailure", "status": "True", "message": "quota"}]}, "Failing"),
    ],
)
def test_states(status: dict[str, Any], state: str) -> None:
    found = release_of(deployment(**status))
    assert found
    assert found.state == state
    assert bool(found.reason) is (state == "Failing")


def test_a_release_without_replicas_is_stopped() -> None:
    found = release_of(deployment(replicas=0))
    assert found
    assert found.state == "Stopped"


@pytest.mark.parametrize(
    "settings",
    ["", "[", "- 1", "model: 3\nadapters: {}\npublished: []", "published: {folder: /claims/../etc}", "a: &a [*a]"],
)
def test_settings_of_another_form_are_taken_as_far_as_they_tell(settings: str) -> None:
    found = release_of(deployment(settings=settings))
    assert found is None or (found.claim, found.adapters) == ("", ())
    assert release_of({"metadata": None, "spec": [], "status": 3}) is None


def test_a_name_that_would_grow_without_end_is_none() -> None:
    lists = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 9)}]" for n in range(4)]
    found = release_of(deployment(settings="\n".join([*lists, "model: {name: *a3}", "adapters: [{name: *a3}]"])))
    assert found
    assert (found.model, found.adapters) == ("", ())
