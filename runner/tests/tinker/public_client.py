"""The public `tinker` client, as a user installs it; a test module that uses the fixture imports it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from images.builder import cache
from images.builder.hostvenv import this_python

HERE = Path(__file__).parent
LOCK = HERE / "client.lock"
CLIENT = HERE / "client_cases.py"
"""What the client is run with."""


@pytest.fixture(scope="session")
def client_python() -> Path:
    """The Python of an environment with the public client alone; made on the first use."""

    def build(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--require-hashes", "--requirement", LOCK]
        subprocess.run([*map(str, install)], check=True)

    key = cache.digest(this_python(), [LOCK], HERE)
    return cache.entry(cache.root() / "tests" / f"tinker-client-{key}", "tinker-client", build) / "bin/python"
