"""What stays in the cluster when its release goes: a guide says how to delete it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from charts.everything import MORE, VALUES
from charts.helm import ROOT, TRAINING_RUNTIMES, VLLM_SERVING, render

GUIDES = {TRAINING_RUNTIMES: "cluster.md", VLLM_SERVING: "serving.md"}


@pytest.mark.parametrize("chart", GUIDES, ids=lambda chart: str(chart.name))
def test_the_guide_has_a_command_that_deletes_each_kind_that_stays(chart: Path) -> None:
    objects = render(chart, [VALUES[chart]], [*MORE[chart], *(["keep=false"] if chart == TRAINING_RUNTIMES else [])])
    kept = {
        item["kind"].lower()
        for item in objects
        if item["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"
    }
    assert {"serviceaccount", "resourceclaimtemplate"} <= kept
    commands = re.findall(r"kubectl delete (\S+)", (ROOT / "docs/guides" / GUIDES[chart]).read_text())
    deleted = {re.sub("ies$", "y", kind) for command in commands for kind in command.split(",")}
    assert kept - deleted == set()
