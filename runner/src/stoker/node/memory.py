"""Reads this container's memory limit, and how often the kernel killed a process at that limit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stoker.plan.interfaces import FlagNames

# cgroup v1 writes "no limit" as the largest multiple of a page. No machine has an exbibyte.
_NO_LIMIT = 2**60


@dataclass(frozen=True, slots=True)
class MemoryCount:
    """The memory of this process's cgroup.

    Attributes:
        limit_bytes: its limit; None without a limit.
        kills: processes that the kernel killed there because memory ran out; None if the kernel does not count them.
    """

    limit_bytes: int | None = None
    kills: int | None = None

    def shortage_since(self, before: MemoryCount, names: FlagNames) -> str | None:
        """Return a sentence about kills since an earlier reading; empty without kills, None if they are not counted.

        Args:
            before: the earlier reading.
            names: how the framework writes the settings that the advice names.
        """
        if self.kills is None or before.kills is None:
            return None
        killed = self.kills - before.kills
        if killed <= 0:
            return ""
        limit = f" of {self.limit_bytes / 2**30:.1f} GiB" if self.limit_bytes else ""
        flags = [flag for flag in (names.batch_size, names.loader_workers) if flag] or ["the batch size"]
        processes = "a process" if killed == 1 else f"{killed} processes"
        return (
            f"out of host memory: the kernel killed {processes} at the container's memory limit{limit}. Raise the "
            f"limit (resourcesPerNode), or lower {', '.join(flags)} or the processes per node"
        )


def read_memory(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> MemoryCount:
    """Read the counters of this process's cgroup, version 2 or 1; in a container the mount itself is the cgroup.

    Formats: Linux, admin-guide/cgroup-v2 (memory.events, memory.max) and cgroup-v1/memory (memory.oom_control).

    Args:
        root: where cgroups are mounted.
        membership: the file with this process's cgroups.
    """
    for folder, limit, events in (
        *((f, "memory.max", "memory.events") for f in _folders(root, membership, "")),
        *((f, "memory.limit_in_bytes", "memory.oom_control") for f in _folders(root / "memory", membership, "memory")),
    ):
        counted = _kills(folder / events)
        if counted is not None:
            return MemoryCount(_limit(folder / limit), counted)
    return MemoryCount()


def _folders(mount: Path, membership: Path, controller: str) -> list[Path]:
    """Return where the cgroup may be: at its path below the mount or, in a container, at the mount."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return [mount]
    # hierarchy:controllers:path
    entries = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    paths = [path.lstrip("/") for _, controllers, path in entries if controller in controllers.split(",")]
    return [*(mount / path for path in paths), mount]


def _kills(events: Path) -> int | None:
    try:
        entries = dict(line.split(None, 1) for line in events.read_text().splitlines() if " " in line)
        return int(entries["oom_kill"])
    except (OSError, KeyError, ValueError):
        return None


def _limit(path: Path) -> int | None:
    try:
        limit = int(path.read_text())
    except (OSError, ValueError):  # `max` means no limit
        return None
    return limit if limit < _NO_LIMIT else None
