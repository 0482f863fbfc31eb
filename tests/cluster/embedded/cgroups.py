"""The cgroup that holds every process of the cluster, on cgroup v1, v2 and mixed machines.

Daemons are started inside it and containers live below it, so nothing that the cluster started can hide from `down`,
whatever became of the files that remember process ids. Each node has two cgroups of its own: one for its daemons (and
what they start, such as containerd's shims), one for its pods. So one node can be removed while the others go on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from ..errors import CannotRunHereError
from .layout import NAME, Node

_MOUNTS = Path("/proc/self/mountinfo")
_ROOT = Path("/sys/fs/cgroup")
_DAEMONS_OF_ALL = f"{NAME}/daemons"
#: How many processes of the machine the whole cluster weighs. As one, it would starve beside tests that train outside.
#: As many more, it would starve those: the kernel may weigh all processes of a session as one (autogroup).
_CLUSTER = 4
#: How many nodes' pods the daemons weigh. They are idle mostly; where they wait behind pods that train, the API server
#: answers late, and leases and nodes are given up.
_DAEMONS = 8
#: What one process, or one cgroup, weighs in each version of cgroups.
_WEIGHTS = {"cpu.shares": 1024, "cpu.weight": 100}


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


def daemons(node: Node) -> list[Path]:
    """Return the cgroup.procs files that put a daemon (and whatever it starts) into its node's cgroup."""
    dividing = [each for each in _hierarchies() if any((each / NAME / name).exists() for name in _WEIGHTS)]
    return [each / _of_daemons(node) / "cgroup.procs" for each in dict.fromkeys([_tracking(), *dividing])]


def create(nodes: Iterable[Node]) -> None:
    """Make the cgroups of the nodes' daemons and pods.

    Raises:
        CannotRunHereError: The kernel refuses, as inside a container that was given no cgroups of its own.
    """
    leaves = [leaf for node in nodes for leaf in _of(node)]
    try:
        for hierarchy in _hierarchies():
            for leaf in leaves:
                folder = hierarchy
                for part in Path(leaf).parts:
                    parent, folder = folder, folder / part
                    folder.mkdir(exist_ok=True)
                    _enable(parent, folder)
            weigh(hierarchy / NAME, _CLUSTER)
            weigh(hierarchy / _DAEMONS_OF_ALL, _DAEMONS)
    except OSError as error:
        raise CannotRunHereError(f"cannot make cgroups for the cluster's pods: {error}") from error


def weigh(cgroup: Path, times: int) -> None:
    """Give a cgroup so many times the part of a process in busy processors, in a hierarchy that divides them."""
    for name, weight in _WEIGHTS.items():
        if (cgroup / name).exists():
            (cgroup / name).write_text(str(times * weight))


def processes(node: Node | None = None) -> list[int]:
    """Return the ids of all living processes in the cluster's cgroup, or in those of one node."""
    found = []
    for cgroup in _of(node):
        for procs in (_tracking() / cgroup).rglob("cgroup.procs"):
            with contextlib.suppress(OSError):  # removed between listing and reading
                found += [int(line) for line in procs.read_text().split()]
    return found


def kill_all(node: Node | None = None, seconds: float = 15) -> list[int]:
    """Send SIGKILL to all `processes` until none is left; return those that would not die."""
    deadline = time.monotonic() + seconds
    while (left := processes(node)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    return left


def remove(node: Node | None = None) -> None:
    """Remove the cluster's cgroups, or those of one node, from every hierarchy; there must be no process in them."""
    for hierarchy in _hierarchies():
        for cgroup in _of(node):
            for folder, _, _ in os.walk(hierarchy / cgroup, topdown=False):
                _rmdir(Path(folder))


def _of(node: Node | None) -> list[str]:
    """Return the cgroups that hold all of a node, or of the cluster."""
    return [_of_daemons(node), node.cgroup.lstrip("/")] if node else [NAME]


def _of_daemons(node: Node) -> str:
    return f"{_DAEMONS_OF_ALL}/{node.name}"


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
