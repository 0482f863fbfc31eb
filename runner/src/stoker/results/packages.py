"""What the commands on results need besides the runner, and how to get it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.packages import from_checkout, not_installed


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Name the extra that brings a package which the body imports and does not find.

    Raises:
        RunError: a package is missing (78).
    """
    try:
        yield
    except ModuleNotFoundError as error:
        problem = not_installed("this command", from_checkout(extra), error.name)
        raise RunError(ExitCode.CONFIG, problem) from error
