"""Helm's own linter and the charts' unit tests."""

from __future__ import annotations

from pathlib import Path

from charts.helm import run, values_files


def test_helm_lint(chart: Path) -> None:
    for values in values_files(chart):
        done = run("helm", "lint", chart, "--strict", "--values", values)
        assert done.returncode == 0, done.stdout + done.stderr


def test_helm_unittest(chart: Path) -> None:
    done = run("helm-unittest", "--strict", "--color=false", "--file", "tests/*_test.yaml", chart)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_way_to_install_is_linted_and_rendered(chart: Path) -> None:
    assert chart / "ci" / "default-values.yaml" in values_files(chart)
