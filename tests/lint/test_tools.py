"""Every linter over every file of its kind; a failure shows the tool's own words."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from charts.helm import tools
from cluster.artifacts import cache_root
from lint.files import ROOT, docker_files, python_files, repository_files, shell_files, yaml_files

# The linters from PyPI lie beside the Python that runs these tests.
BIN = Path(sys.executable).parent


def check(tool: Path, options: Sequence[str], files: Sequence[Path]) -> None:
    """Run a linter over `files` from the repository root and fail with its output if it finds anything."""
    assert files, f"{tool.name} has nothing to look at: tests/lint/files.py finds no file of its kind"
    result = subprocess.run(
        [tool, *options, *files],
        cwd=ROOT,
        check=False,
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if result.returncode:
        pytest.fail(f"$ {shlex.join([tool.name, *options])} [{len(files)} files]\n{result.stdout}", pytrace=False)


def test_ruff_check() -> None:
    check(BIN / "ruff", ["check", "--quiet", "--output-format=concise"], python_files())


def test_ruff_format() -> None:
    check(BIN / "ruff", ["format", "--check", "--quiet", "--diff"], python_files())


def test_mypy() -> None:
    # A fresh clone need not read all again what another has read.
    check(BIN / "mypy", ["--no-error-summary", "--cache-dir", str(cache_root() / "mypy")], python_files())


def test_yamllint() -> None:
    check(BIN / "yamllint", ["--strict", "--format=parsable"], yaml_files())


def test_shellcheck() -> None:
    check(BIN / "shellcheck", ["--external-sources", "--format=gcc"], shell_files())


def test_hadolint() -> None:
    check(BIN / "hadolint", ["--no-color"], docker_files())


def test_actionlint() -> None:
    workflows = [path for path in repository_files() if path.parent == Path(".github/workflows")]
    check(tools() / "actionlint", ["-no-color", "-oneline", f"-shellcheck={BIN / 'shellcheck'}"], workflows)
