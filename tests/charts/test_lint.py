"""Helm's own linter, the charts' unit tests, and what chart-testing (`ct lint`) asks of a chart."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

from charts.helm import ROOT, run, values_files


def test_helm_lint(chart: Path) -> None:
    for values in values_files(chart):
        done = run("helm", "lint", chart, "--strict", "--values", values)
        assert done.returncode == 0, done.stdout + done.stderr


def test_helm_unittest(chart: Path) -> None:
    done = run("helm-unittest", "--strict", "--color=false", "--file", "tests/*_test.yaml", chart)
    assert done.returncode == 0, done.stdout + done.stderr


def test_chart_metadata(chart: Path) -> None:
    """With the same tool as `ct lint`, which lies beside the Python that runs these tests."""
    yamale = Path(sys.executable).parent / "yamale"
    done = subprocess.run(
        [yamale, "--schema", ROOT / "chart_schema.yaml", chart / "Chart.yaml"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_way_to_install_is_linted_and_rendered(chart: Path) -> None:
    assert chart / "ci" / "default-values.yaml" in values_files(chart)


def test_settings_of_chart_testing_name_files_that_exist() -> None:
    settings = yaml.safe_load((ROOT / "ct.yaml").read_text())
    named = [*settings["chart-dirs"], settings["chart-yaml-schema"], settings["lint-conf"]]
    assert [path for path in named if not (ROOT / path).exists()] == []
