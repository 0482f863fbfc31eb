"""Errors a user can act on, each with the exit code the command ends with."""

from __future__ import annotations

#: Exit codes of ``python3 -m cluster``, after sysexits.h. ``exec`` ends with its command's own code.
OK = 0
NOT_HEALTHY = 1
USAGE = 64
UNAVAILABLE = 69
CANNOT_RUN_HERE = 77


class ClusterError(Exception):
    """Something failed; the message says what, where, and what to do about it."""

    exit_code = UNAVAILABLE


class UsageError(ClusterError):
    """The command line or an environment variable asks for something that does not exist."""

    exit_code = USAGE


class CannotRunHereError(ClusterError):
    """This machine cannot run the chosen provider at all (not root, not Linux, …); tests skip with the message."""

    exit_code = CANNOT_RUN_HERE
