"""kube-score finds nothing in what the charts render but what kube_score.yaml explains."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from charts.helm import ROOT, render, values_files
from charts.runtimes import jobs, runtimes

EXCEPTIONS = Path(__file__).with_name("kube_score.yaml")
PASSED = 10
"""The grade of an object that has what a check asks for; 7, 5 and 1 are less and less of it."""


@pytest.fixture(scope="session")
def kube_score() -> Path:
    """The program, built first where that was not done yet."""
    built = subprocess.run([ROOT / "tools/build", "kube-score"], check=True, stdout=subprocess.PIPE, text=True)
    return Path(built.stdout.strip()) / "kube-score"


def findings(program: Path, chart: Path) -> dict[str, set[str]]:
    """Return what kube-score finds in a chart by the check's name, as `KIND/NAME: comment` for all values files.

    It does not know runtimes: it gets the jobs that JobSet would make of them.
    """
    found: dict[str, set[str]] = {}
    for values in values_files(chart):
        objects = render(chart, [values])
        for runtime in runtimes(objects):
            for job in jobs(runtime):
                name = f"{runtime['metadata']['name']}-{job['metadata']['name']}"
                objects.append({**job, "metadata": {**job["metadata"], "name": name}})
        done = subprocess.run(
            [program, "score", "--all-default-optional", "--output-format", "json", "--output-version", "v2", "-"],
            check=False,
            input="\n---\n".join(map(json.dumps, objects)),
            capture_output=True,
            text=True,
        )
        for scored in json.loads(done.stdout):
            for check in scored["checks"]:
                if not check["skipped"] and check["grade"] < PASSED:
                    comments = [f"{comment['path']} {comment['summary']}" for comment in check["comments"] or [{}]]
                    where = f"{scored['type_meta']['kind']}/{scored['object_meta']['name']}"
                    found.setdefault(check["check"]["id"], set()).add(f"{where}: {'; '.join(comments)}")
    return found


def test_what_kube_score_finds_is_explained(chart: Path, kube_score: Path) -> None:
    explained = yaml.safe_load(EXCEPTIONS.read_text()).get(chart.name, {})
    found = findings(kube_score, chart)
    assert {check: sorted(where) for check, where in found.items() if check not in explained} == {}
    assert [check for check in explained if check not in found] == [], "explained, but found no more"
    assert all(len(reason) > 30 for reason in explained.values())


def test_kube_score_finds_a_container_without_limits(kube_score: Path, tmp_path: Path) -> None:
    """Guards the test above."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare"}, "spec": {"containers": [{"name": "bare"}]}}
    done = subprocess.run(
        [kube_score, "score", "-"], check=False, input=json.dumps(pod), capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "CPU limit is not set" in done.stdout
