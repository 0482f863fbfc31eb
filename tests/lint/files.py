"""The files the linters look at, all that Git tracks or would track, and how a rule reports what it finds."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@cache
def repository_files() -> tuple[Path, ...]:
    """Return every regular file of the checkout that Git does not ignore, relative to the root, sorted.

    Files not yet added count too, so that a new one is linted before its first commit.

    Raises:
        subprocess.CalledProcessError: this is not a Git checkout.
    """
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    names = {Path(name) for name in listing.split("\0") if name}
    return tuple(sorted(name for name in names if (ROOT / name).is_file() and not (ROOT / name).is_symlink()))


@cache
def shebang(path: Path) -> str:
    """Return the first line of a script, such as `#!/usr/bin/env bash`; empty for any other file."""
    with (ROOT / path).open("rb") as file:
        line = file.readline(200)
    return line.decode("utf-8", "replace").strip() if line.startswith(b"#!") else ""


@cache
def texts() -> dict[Path, str]:
    """Return the content of every text file; binary files are left out."""
    contents = {path: (ROOT / path).read_bytes() for path in repository_files()}
    return {path: data.decode("utf-8") for path, data in contents.items() if b"\0" not in data}


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number the lines of a text file, from one."""
    return enumerate(texts()[path].split("\n"), start=1)


def report(findings: Sequence[str], fix: str) -> None:
    """Fail the test with one line for each finding and one that says what to do; pass if there is none."""
    if findings:
        pytest.fail("\n".join([*findings, fix]), pytrace=False)


def python_files() -> list[Path]:
    """Return Python files, found by name or by shebang."""
    return [path for path in repository_files() if path.suffix in {".py", ".pyi"} or "python" in shebang(path)]


def shell_files() -> list[Path]:
    """Return shell scripts, found by name or by shebang."""
    interpreters = ("/sh", " sh", "/bash", " bash", "/dash", " dash")
    return [
        path
        for path in repository_files()
        if path.suffix in {".sh", ".bash"} or shebang(path).split(" -")[0].endswith(interpreters)
    ]


def docker_files() -> list[Path]:
    """Return Dockerfiles and Containerfiles, also those with a suffix such as `Dockerfile.cuda`."""
    return [path for path in repository_files() if path.name.split(".")[0] in {"Dockerfile", "Containerfile"}]


def yaml_files() -> list[Path]:
    """Return YAML files; `.yamllint` names those that are not YAML before Helm renders them."""
    return [path for path in repository_files() if path.suffix in {".yaml", ".yml"} or path.name == ".yamllint"]


def markdown_files() -> list[Path]:
    """Return Markdown files."""
    return [path for path in repository_files() if path.suffix == ".md"]
