"""No map that a chart renders has a key twice, whatever labels and annotations values add to it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.everything import MORE, VALUES
from charts.helm import CHARTS, STOKER_BOARD, TRAINING_RUNTIMES, VLLM_SERVING, run, template, template_arguments

MAPS = {
    TRAINING_RUNTIMES: (
        "commonLabels", "commonAnnotations", "serviceAccount.annotations", "initializers.annotations",
        "monitoring.labels", "monitoring.dashboardLabels",
        "test.labels", "nodeSelector", "runtimes.trl-distributed.labels",
        "runtimes.trl-distributed.annotations", "runtimes.trl-distributed.nodeSelector",
        "runtimes.trl-distributed.podTemplate.metadata.labels",
        "runtimes.trl-distributed.podTemplate.metadata.annotations",
    ),
    VLLM_SERVING: (
        "commonLabels", "commonAnnotations", "serviceAccount.annotations",
        "podLabels", "podAnnotations", "monitoring.labels", "monitoring.dashboardLabels", "service.annotations",
        "ingress.annotations", "nodeSelector",
    ),
    STOKER_BOARD: (
        "commonLabels", "commonAnnotations", "serviceAccount.annotations", "podLabels", "podAnnotations",
        "service.annotations", "ingress.annotations", "nodeSelector",
    ),
}  # fmt: skip
"""The values that a chart writes into a map besides keys of its own."""
REFUSAL = re.compile(r"^(\S+): the chart sets (\S+) itself\. Remove it\.$", re.MULTILINE)


class OnceEach(yaml.CSafeLoader):
    """Refuses a key that stands twice in a map, as kustomize and with it Flux do."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the map; Helm and Kubernetes themselves would take the last of two."""
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        assert len(found) == len(node.value), f"a key twice in line {node.start_mark.line + 1}"
        return found


def own_keys(node: Any) -> Iterator[str]:
    """Yield the keys of all labels and annotations in what a chart renders."""
    if isinstance(node, list):
        for item in node:
            yield from own_keys(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in ("labels", "annotations", "matchLabels", "nodeSelector") and isinstance(value, dict):
                yield from value
            else:
                yield from own_keys(value)


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: str(chart.name))
def test_no_key_is_written_twice_whatever_values_add(chart: Path) -> None:
    """Every value gets every key that the chart writes anywhere; what is refused is left out the second time."""
    plain = yaml.load_all(template(chart, [VALUES[chart]], MORE[chart]), OnceEach)
    keys = {*own_keys([item for item in plain if item]), "example.com/team"}
    assert {"app.kubernetes.io/name", "helm.sh/chart"} < keys
    given = {path: dict.fromkeys(sorted(keys), "mine") for path in MAPS[chart]}
    refused = run("helm", *template_arguments(chart, [VALUES[chart]], settings(chart, given)))
    assert refused.returncode != 0
    found = REFUSAL.findall(refused.stderr)
    assert found, refused.stderr
    for path, key in found:
        del given[path][key]
    rendered = template(chart, [VALUES[chart]], settings(chart, given))
    assert len(list(yaml.load_all(rendered, OnceEach))) > 1
    assert rendered.count("example.com/team: mine") >= len(MAPS[chart]) - 1, "every value reaches what is rendered"


def settings(chart: Path, given: dict[str, dict[str, str]]) -> list[str]:
    """Return settings of the chart with maps."""
    return [*MORE[chart], *(f"{path}={json.dumps(value)}" for path, value in given.items())]


def test_a_key_that_stands_twice_is_found() -> None:
    """Guards the test above."""
    with pytest.raises(AssertionError, match="a key twice in line 1"):
        yaml.load("a: 1\na: 2", OnceEach)
