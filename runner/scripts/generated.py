"""What the scripts here share: files made from an installed package are written anew, or with --check only compared."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path


def write(what: str | None, package: str, pinned: str, files: Callable[[], Iterable[tuple[Path, str]]]) -> int:
    """Read the command line, and write or compare files.

    Args:
        what: the script's docstring, for `--help`.
        package: what they are made from.
        pinned: the version that must be installed.
        files: makes each file's path and text.

    Returns:
        The exit code: 1 if another version is installed, or if with --check a file has drifted.
    """
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a file has drifted")
    check = parser.parse_args().check
    if version(package) != pinned:
        print(f"this environment has {package} {version(package)}, the files are of {pinned}", file=sys.stderr)
        return 1
    drifted = []
    for path, text in files():
        if check and (not path.exists() or path.read_text() != text):
            drifted.append(str(path))
        elif not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if drifted:
        print("drifted, run `make generate`:", *drifted, sep="\n  ", file=sys.stderr)
    return 1 if drifted else 0
