"""The cgroup that holds every process of the cluster, on cgroup v1, v2 and mixed machines.

Daemons are started inside it and containers live below it, so nothing that the cluster started can hide from `down`,
whatever became of the files that remember process ids.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from ..errors import CannotRunHereError
from .layout import NAME, NODES

_MOUNTS = Path("/proc/self/mountinfo")
_ROOT = Path("/sys/fs/cgroup")


def hierarchies(mountinfo: str) -> list[Path]:
    """Return every mounted cgroup hierarchy named in the text of /proc/self/mountinfo, in its order."""
    found: list[Path] = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] in ("cgroup", "cgroup2"):
            place = Path(before.split(" ")[4])
            if place not in found:
                found.append(place)
    return found


def is_v2() -> bool:
    """Tell whether this machine has the unified hierarchy only."""
    return (_ROOT / "cgroup.controllers").exists()


def daemons() -> Path:
    """Return the cgroup.procs file that puts a daemon (and whatever it starts) into the cluster's cgroup."""
    return _tracking() / NAME / "daemons" / "cgroup.procs"


def create() -> None:
    """Make the cgroups of the daemons and of each node's pods.

    Raises:
        CannotRunHereError: The kernel refuses, as inside a container that was given no cgroups of its own.
    """
    leaves = [f"{NAME}/daemons", *(node.cgroup.lstrip("/") for node in NODES)]
    try:
        for hierarchy in _hierarchies():
            for leaf in leaves:
                folder = hierarchy
                for part in Path(leaf).parts:
                    parent, folder = folder, folder / part
                    folder.mkdir(exist_ok=True)
                    _enable(parent, folder)
    except OSError as error:
        raise CannotRunHereError(f"cannot make cgroups for the cluster's pods: {error}") from error


def processes() -> list[int]:
    """Return the ids of all living processes in the cluster's cgroup."""
    found = []
    for procs in (_tracking() / NAME).rglob("cgroup.procs"):
        with contextlib.suppress(OSError):  # removed between listing and reading
            found += [int(line) for line in procs.read_text().split()]
    return found


def kill_all(seconds: float = 15) -> list[int]:
    """Send SIGKILL to every process in the cluster's cgroup until none is left; return those that would not die."""
    deadline = time.monotonic() + seconds
    while (left := processes()) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    return left


def remove() -> None:
    """Remove the cluster's cgroups from every hierarchy; there must be no process in them."""
    for hierarchy in _hierarchies():
        for folder, _, _ in os.walk(hierarchy / NAME, topdown=False):
            _rmdir(Path(folder))


def _rmdir(folder: Path) -> None:
    """Remove one cgroup; the kernel may call it busy for a moment after its last process ended."""
    for _ in range(50):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.05)
        else:
            return
    folder.rmdir()


def _hierarchies() -> list[Path]:
    return [_ROOT] if is_v2() else hierarchies(_MOUNTS.read_text())


def _tracking() -> Path:
    """The one hierarchy whose membership is taken for "belongs to the cluster": one that containers are put into."""
    return _ROOT if is_v2() else _ROOT / "pids"


def _enable(parent: Path, folder: Path) -> None:
    if is_v2():
        controllers = (parent / "cgroup.controllers").read_text().split()
        (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))
        return
    for name in ("cpuset.cpus", "cpuset.mems"):  # a new v1 cpuset is empty, and no process may enter it
        file = folder / name
        if file.exists() and not file.read_text().strip():
            file.write_text((parent / name).read_text())
