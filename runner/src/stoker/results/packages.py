"""What the commands on results need besides the runner, and how to get it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stoker.contract.exits import ExitCode, RunError


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Name the extra that brings a package which the body imports and does not find.

    Raises:
        RunError: a package is missing (78).
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise RunError(
            ExitCode.CONFIG,
            f"the Python package {error.name} is not installed, which this command needs: from a checkout, pip install "
            f"'./runner[{extra}]'",
        ) from error
