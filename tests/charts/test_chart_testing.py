"""`ct lint` on this checkout's charts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from charts.chart_testing import path, pull_request
from charts.helm import CHARTS


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository in which the charts of this checkout are the change."""
    return pull_request(tmp_path)


def lint(repository: Path) -> subprocess.CompletedProcess[str]:
    """Run `ct lint`, which takes its settings from ct.yaml."""
    return subprocess.run(
        ["ct", "lint"], check=False, capture_output=True, text=True, cwd=repository, env={**os.environ, "PATH": path()}
    )


@pytest.mark.full
def test_ct_lint_passes(repository: Path) -> None:
    done = lint(repository)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [chart.name for chart in CHARTS if f" ✔︎ {chart.name} " not in done.stdout] == []


def test_ct_lint_refuses_a_chart_without_a_home(repository: Path) -> None:
    """Guards the test above: ct reads our settings, and finds what they forbid."""
    description = repository / "charts/training-runtimes/Chart.yaml"
    description.write_text(
        "".join(line for line in description.read_text().splitlines(keepends=True) if not line.startswith("home:"))
    )
    done = lint(repository)
    assert done.returncode == 1
    # ct may lose the last lines of the program that it asks, which says `home: Required field missing`.
    assert " ✖︎ training-runtimes " in done.stdout, done.stdout + done.stderr
    assert [chart.name for chart in CHARTS if f" ✔︎ {chart.name} " not in done.stdout] == ["training-runtimes"]
