"""Which network NCCL chose between nodes: it says so only in its own log, which is kept out of the pod's."""

from __future__ import annotations

import re
from collections.abc import Iterable, MutableMapping
from pathlib import Path

# Lines of NCCL 2.18 to 2.29. What a channel goes through is what is used; the other line is what was found.
_CHANNEL = re.compile(r" via NET/(?P<network>[^/]+)/\d+(?P<direct>\S*/GDRDMA)?")
_FOUND = re.compile(r"NCCL INFO (?:Using network|Initialized NET plugin) (?P<network>[^\n]+)")
_DIRECT = " with GPUDirect RDMA"
# What the log may hold that these lines do not need: a run writes them once, at its start.
_LONGEST = 2**22


def keep_log(environ: MutableMapping[str, str], file: Path) -> bool:
    """Have NCCL write what it chooses into a file. Leaves a log that the user asked for alone.

    Args:
        environ: the environment of this process, before NCCL is loaded.
        file: where to write.

    Returns:
        whether the file will be written.
    """
    if any(environ.get(name) for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")):
        return False
    environ.update({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": str(file)})
    return True


def read_transport(file: Path) -> str | None:
    """Return the network that a log of NCCL names; None without one."""
    try:
        with file.open(encoding="utf-8", errors="replace") as stream:
            return transport_of(stream.read(_LONGEST).splitlines())
    except OSError:
        return None


def transport_of(lines: Iterable[str]) -> str | None:
    """Return the network that NCCL chose between nodes, for example `IB with GPUDirect RDMA` or `Socket`.

    Args:
        lines: NCCL's log at the level INFO.

    Returns:
        the networks of its channels, or without any the network it found; None if it names none.
    """
    used, found = set(), None
    for line in lines:
        if channel := _CHANNEL.search(line):
            used.add(channel["network"] + (_DIRECT if channel["direct"] else ""))
        elif named := _FOUND.search(line):
            found = named["network"].strip()
    return ", ".join(sorted(used)) or found


def sentence(transport: str) -> str:
    """Return what the pod's log says of a network."""
    slow = "" if "Socket" not in transport else ", which is TCP: see the guide on large models if you expected RDMA"
    return f"between nodes NCCL uses {transport}{slow}"
