"""Ties a process's life to that of its parent, so that a runner killed outright leaves no trainer behind."""

from __future__ import annotations

import ctypes
import signal

# From linux/prctl.h.
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have the kernel kill this process once the one that started it is gone.

    In a pod the container ends with its first process anyway; a local run has no container around it.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
