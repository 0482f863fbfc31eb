"""Daemons: started in their namespaces and cgroup, remembered by process id and start time.

A process id alone may by now belong to a stranger; together with the start time it cannot. They are stopped by their
cgroup (see `cgroups`), which holds whatever they started, too.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ClusterError
from ..progress import wait_for
from . import cgroups
from .layout import LOGS, RUN, Node

#: How long one daemon may take to get ready; plenty, for machines that are busy.
PROBE_SECONDS = 120.0
_PIDS = RUN / "pids"
#: Enters the cgroups of its node's daemons, then becomes the program: nothing it starts is ever outside.
_ENTER = 'for procs in $0; do echo $$ > "$procs" || exit; done; exec "$@"'


@dataclass(frozen=True)
class Daemon:
    """One long-running process.

    Attributes:
        name: Unique in the cluster; names its pidfile and its log.
        argv: The command.
        node: Whose network namespace it runs in.
        mounts_of: The daemon whose mount namespace it shares, if any.
        environment: Added to a minimal environment.
    """

    name: str
    argv: Sequence[str]
    node: Node
    mounts_of: Daemon | None = None
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def log(self) -> Path:
        """Where its standard output and error go."""
        return LOGS / f"{self.name}.log"

    @property
    def pidfile(self) -> Path:
        """Remembers its process id and start time."""
        return _PIDS / self.name


def start(daemon: Daemon) -> None:
    """Start a daemon and remember it.

    Raises:
        ClusterError: The daemon whose mount namespace it shares has ended.
    """
    daemon.log.parent.mkdir(parents=True, exist_ok=True)
    _PIDS.mkdir(parents=True, exist_ok=True)
    enter = ["nsenter", f"--net=/run/netns/{daemon.node.netns}"]
    if daemon.mounts_of is not None:
        pid = pid_of(daemon.mounts_of)
        if pid is None:
            raise ClusterError(f"{daemon.name} cannot start: {daemon.mounts_of.name} has ended")
        enter.append(f"--mount=/proc/{pid}/ns/mnt")
    procs = " ".join(map(str, cgroups.daemons(daemon.node)))
    with daemon.log.open("ab") as log:
        process = subprocess.Popen(
            ["sh", "-c", _ENTER, procs, *enter, "--", *daemon.argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": "/root", **dict(daemon.environment)},
        )
    temporary = daemon.pidfile.with_suffix(".new")
    temporary.write_text(f"{process.pid} {start_time(process.pid)}\n")
    temporary.rename(daemon.pidfile)


def wait_until(daemon: Daemon, ready: Callable[[], bool]) -> None:
    """Wait until a daemon is ready, but not longer than it lives.

    Raises:
        ClusterError: It ended, or was not ready in time.
    """
    started = time.monotonic()

    def ready_or_dead() -> bool:
        if pid_of(daemon) is None:
            raise ClusterError(
                f"{daemon.name} exited after {time.monotonic() - started:.0f}s; the last lines of {daemon.log}:\n"
                f"{last_words(daemon)}"
            )
        return ready()

    wait_for(daemon.name, ready_or_dead, PROBE_SECONDS, f"see {daemon.log}")


def pid_of(daemon: Daemon) -> int | None:
    """Return the process id of a daemon that lives, else None."""
    return remembered_pid(daemon.pidfile)


def remembered_pid(pidfile: Path) -> int | None:
    """Return the process id in a pidfile if that very process still lives, else None."""
    try:
        pid, started = (int(word) for word in pidfile.read_text().split())
    except (OSError, ValueError):
        return None
    return pid if start_time(pid) == started else None


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if there is none or it is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(rest[18])


def last_words(daemon: Daemon, lines: int = 5) -> str:
    """Return the end of a daemon's log, for an error message."""
    try:
        with daemon.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 20_000))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
