"""Ends a process together with its parent, so that a killed runner leaves no trainer behind."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

# From linux/prctl.h.
_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int | None = None) -> None:
    """Let the kernel kill this process when its parent ends.

    In a pod, the container ends with its first process anyway. A local run has no container.

    Args:
        parent: the parent's process id if known; the parent may already be gone.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Become a command that ends with its parent: `python -m stoker.rank.lifeline PARENT COMMAND…`."""
    parent, *argv = sys.argv[1:]
    end_with_parent(int(parent))
    try:
        os.execv(argv[0], argv)
    except OSError as error:
        from stoker.contract.words import report_error

        report_error(f"the job's command {argv[0]!r} cannot start here: {error.strerror}")
        sys.exit(78)


if __name__ == "__main__":
    main()
