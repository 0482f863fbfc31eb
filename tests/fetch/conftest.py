"""The command as the image `fetch` runs it: its locked clients, this checkout's runner."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from fetch import hub as hubs
from fetch import s3

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def clients() -> Path:
    """The Python of the image's environment."""
    made = subprocess.run(
        [sys.executable, "images/fetch/venv"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return Path(made.stdout.strip()) / "bin" / "python"


class Initializer:
    """Runs `stoker fetch` as an initializer's container does.

    Attributes:
        workspace: the volume.
        env: what every container is told.
    """

    def __init__(self, python: Path, folder: Path, env: Mapping[str, str]) -> None:
        self.workspace = folder / "workspace"
        self.workspace.mkdir()
        self._python = python
        home = {"HF_HOME": str(folder / "hf"), "HOME": str(folder), "TMPDIR": str(folder)}
        log = {"STOKER_TERMINATION_LOG": str(folder / "termination-log")}
        self.env = {**home, **log, "PATH": os.environ["PATH"], "STOKER_WORKSPACE": str(self.workspace), **env}

    def start(self, kind: str, uri: str, **env: str) -> subprocess.Popen[str]:
        """Start a container."""
        return subprocess.Popen(
            [self._python, "-m", "stoker", "fetch", kind],
            env={**self.env, "PYTHONPATH": str(ROOT / "runner/src"), "STORAGE_URI": uri, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, kind: str, uri: str, **env: str) -> tuple[int, str]:
        """Run a container to its end, and return its exit code and log."""
        process = self.start(kind, uri, **env)
        output, _ = process.communicate(timeout=180)
        assert "Traceback" not in output, output
        return process.returncode, output

    def files(self, kind: str) -> dict[str, bytes]:
        """Return what the trainer would see."""
        folder = self.workspace / kind
        found = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
        found.pop(".stoker-fetch.json")
        return found

    def wait_for_bytes(self, count: int) -> None:
        """Wait until that much is on the disk."""
        deadline = time.monotonic() + 120
        while self._bytes() < count:
            assert time.monotonic() < deadline, "nothing came"
            time.sleep(0.02)

    def _bytes(self) -> int:
        """Return how much is on the disk; 0 while a file or a folder gets another name."""
        with suppress(FileNotFoundError):
            return sum(path.stat().st_size for path in self.workspace.rglob("*") if path.is_file())
        return 0


@pytest.fixture
def initializer(clients: Path, tmp_path: Path) -> Callable[..., Initializer]:
    """Makes an initializer with a volume of its own."""
    return lambda **env: Initializer(clients, tmp_path, env)


@pytest.fixture
def hub() -> Iterator[hubs.Hub]:
    """An empty hub."""
    with hubs.serving() as found:
        yield found


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an S3 server without buckets."""
    with s3.serving(tmp_path_factory.mktemp("s3")) as address:
        yield address
