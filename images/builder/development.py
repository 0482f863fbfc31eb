"""The repository's development environment, for the commands here that need more than the standard library."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from images.builder import ROOT


def environment() -> Path:
    """Return the folder of the environment that `tests/dev-venv` makes.

    Raises:
        SystemExit: it could not be made; `tests/dev-venv` has said why.
    """
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "dev-venv")], check=False, stdout=subprocess.PIPE, text=True
    )
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    return Path(done.stdout.strip())


def ensure_packages() -> None:
    """Go on with the environment's Python if this one lacks a package; returns only if it has them all."""
    if any(importlib.util.find_spec(name) is None for name in ("packaging", "yaml")):
        python = environment() / "bin" / "python"
        os.execv(python, [str(python), *sys.argv])
