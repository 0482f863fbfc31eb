"""Whether the processes that load data can bind their sockets below the folder for temporary files. Pure."""

from __future__ import annotations

import os

from stoker.plan.facts import Facts

# A socket's path has at most 107 bytes, and Python's multiprocessing adds `/pymp-…/listener-…` to that of the folder.
_LONGEST = 107 - len("/pymp-12345678/listener-12345678")


def temporary_folder_problems(facts: Facts, workers: int) -> list[str]:
    """Return a problem if the path of `TMPDIR` is too long: data loader workers would wait there forever.

    Args:
        facts: the facts of the container.
        workers: data loading processes per training process.
    """
    folder = facts.get("TMPDIR") or ""
    length = len(os.fsencode(folder))
    if not workers or length <= _LONGEST:
        return []
    problem = (
        f"TMPDIR is {folder}, a path of {length} bytes, but data loader workers bind sockets below it, which leaves "
        f"room for {_LONGEST}: set TMPDIR to a shorter path, such as /tmp"
    )
    return [problem]
