"""A registry on this machine, and small images with the names that the lock has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from images.builder.catalogue import variants
from release import ROOT, tools
from release.images import push_layout

from cluster import oci

Release = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A registry that lives as long as the test: its host and port."""
    log = tmp_path / "registry.log"
    folder = tmp_path / "registry"
    folder.mkdir()
    command = [str(tools.path("crane")), "registry", "serve", "--address", "127.0.0.1:0", "--disk", str(folder)]
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as server:
        try:
            yield f"127.0.0.1:{_port(log, server)}"
        finally:
            server.kill()


def _port(log: Path, server: subprocess.Popen[bytes]) -> str:
    with log.open() as lines:
        while server.poll() is None:
            if "serving on port" in (line := lines.readline()):
                return line.split()[-1]
    pytest.fail(log.read_text())


@pytest.fixture
def release() -> Release:
    """Runs `python -m release` as the make targets do."""

    def run(*words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "release", *map(str, words)], check=False, capture_output=True, text=True, cwd=ROOT
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def pushed(registry: str, tmp_path: Path) -> Path:
    """The list of images pushed to `REGISTRY/built/stoker-dev`: for every variant one of a single file."""
    lines = []
    for variant in variants():
        content = tmp_path / variant.target
        content.write_text(variant.target)
        layout = tmp_path / f"{variant.target}-layout"
        oci.write_layout(layout, {"/name": content}, ["/name"])
        reference = f"{registry}/built/stoker-dev/{variant.image}:{variant.tag}"
        lines.append(f"{reference}@{push_layout(layout, reference)}\n")
    path = tmp_path / "images.txt"
    path.write_text("".join(lines))
    return path
