"""Checks that need the world outside: done once, on this node, before a trainer process exists."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from stoker.exits import ExitCode, RunError
from stoker.frameworks import get_framework
from stoker.plan import Check, Plan
from stoker.report import say

_SECONDS_BETWEEN_LOOKUPS = 1.0
_SECONDS_BETWEEN_MESSAGES = 15.0


def check_paths(plan: Plan) -> None:
    """Carry out the plan's checks of files and folders.

    Raises:
        RunError: the first that does not hold.
    """
    for check in plan.checks:
        if check.kind == "writable":
            _check_writable(check)
        else:
            _check_there(check)
            _check_readable(check)


def _check_there(check: Check) -> None:
    try:
        Path(check.path).stat()
    except OSError as error:
        absent = isinstance(error, FileNotFoundError | NotADirectoryError)
        found = "does not exist" if absent else f"cannot be reached ({error.strerror})"
        raise RunError(check.code, f"the {check.what} {check.path} {found}: {check.fix}") from error
    except ValueError as error:  # a NUL in the path
        raise RunError(check.code, f"the {check.what} {check.path!r} is no path: {check.fix}") from error


def _check_readable(check: Check) -> None:
    # Libraries that write weights for their user alone, and call a file they may not read missing, make this common.
    path = Path(check.path)
    try:
        found = [path, *sorted(path.iterdir())] if path.is_dir() else [path]
    except OSError:
        found = [path]
    for entry in found:
        if not os.access(entry, os.R_OK | os.X_OK if entry.is_dir() else os.R_OK):
            raise RunError(
                check.code,
                f"the {check.what} {entry} cannot be read by UID {os.geteuid()}, GID {os.getegid()}: "
                "make it readable for the group 0 (chmod -R g+rX)",
            )


def _check_writable(check: Check) -> None:
    folder = Path(check.path)
    probe = folder / f".stoker-probe-{os.uname().nodename}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise RunError(
            check.code, f"the {check.what} {check.path} cannot be written to ({error.strerror}): {check.fix}"
        ) from error


def check_packages(plan: Plan) -> None:
    """Look whether this Python has what the framework is made of, without importing it.

    Raises:
        RunError: packages are missing (78): no retry in the same image would find them.
    """
    missing = [name for name in get_framework(plan.framework).packages if find_spec(name) is None]
    if missing:
        raise RunError(
            ExitCode.CONFIG,
            f"{sys.executable} has no {', '.join(missing)}, which {plan.framework} needs: use an image that has them, "
            f"or where there is none a Python that does (`stoker local … --python {plan.framework}=PATH`)",
        )


def wait_for_peers(plan: Plan, give_up: Callable[[], None]) -> None:
    """Wait until every node of the run has a name in DNS, so that a node that is still scaling up is waited for.

    Args:
        plan: the run.
        give_up: called between look-ups; raises to end the waiting (a stop was asked for, a peer has failed).

    Raises:
        RunError: the deadline passed; lists the nodes that are missing (69).
    """
    missing = dict(enumerate(plan.world.peers()))
    deadline = time.monotonic() + plan.rendezvous_seconds
    next_message = time.monotonic() + _SECONDS_BETWEEN_MESSAGES
    while True:
        missing = {rank: name for rank, name in missing.items() if not _resolves(name)}
        if not missing:
            return
        listed = ", ".join(f"{rank} ({name})" for rank, name in missing.items())
        now = time.monotonic()
        if now > deadline:
            raise RunError(
                ExitCode.UNAVAILABLE,
                f"after {plan.rendezvous_seconds} s these nodes of {plan.world.nnodes} are missing: {listed}. "
                "See why their pods do not start (`kubectl describe pod`): no room, quota, or an image that cannot be "
                "pulled",
            )
        if now > next_message:
            say(f"waiting for node {listed}, {round(deadline - now)} s left")
            next_message = now + _SECONDS_BETWEEN_MESSAGES
        give_up()
        time.sleep(_SECONDS_BETWEEN_LOOKUPS)


def _resolves(name: str) -> bool:
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return False
    return True
