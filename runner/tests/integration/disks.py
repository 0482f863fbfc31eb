"""Small disks that fill up."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FILLER = "filler"


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Make a folder, such as a job's workspace, a disk of its own, of 32 MiB."""
    folder.mkdir(parents=True)
    mounted = ["mount", "-t", "tmpfs", "-o", "size=32m", "stoker-test", str(folder)]
    done = subprocess.run(mounted, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def _fill(disk: Path) -> None:
    size = 2**20
    with (disk / FILLER).open("ab", buffering=0) as stream:
        while size:
            try:
                stream.write(bytes(size))
            except OSError:
                size //= 2


@contextmanager
def kept_full(disk: Path) -> Iterator[None]:
    """Leave no room on a disk, whatever is removed from it meanwhile."""
    over = threading.Event()

    def keep() -> None:
        while not over.is_set():
            _fill(disk)
            over.wait(0.02)

    filler = threading.Thread(target=keep)
    filler.start()
    try:
        yield
    finally:
        over.set()
        filler.join()
        (disk / FILLER).unlink()


@contextmanager
def kept_read_only(disk: Path) -> Iterator[None]:
    """Have a disk that cannot be written to."""
    end = time.monotonic() + 60
    while (done := _remount(disk, "ro")).returncode:  # it is busy while a file is open for writing
        assert time.monotonic() < end, done.stderr
        time.sleep(0.01)
    try:
        yield
    finally:
        _remount(disk, "rw").check_returncode()


def _remount(disk: Path, how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["mount", "-o", f"remount,{how}", disk], check=False, capture_output=True, text=True)
