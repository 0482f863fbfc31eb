"""What the endpoint answers to a request that it does not fulfil, and which clients it knows. Pure."""

from __future__ import annotations

import re

CLIENTS = "0.38"
"""The versions of the client that the protocol was read from and that the tests run."""

_VERSION = re.compile(r"^(\d+\.\d+)\.")


class RefusedError(Exception):
    """A request that its sender can correct.

    Args:
        message: what is wrong, and what to write instead.
        status: of HTTP.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.status = message, status


def refuse_client(version: str) -> None:
    """Refuse a client of another version: its messages may mean something else.

    Raises:
        RefusedError: it is of another version.
    """
    found = _VERSION.match(version)
    if found is None or found[1] != CLIENTS:
        raise RefusedError(
            f"this endpoint supports tinker {CLIENTS}, but the client is {version or 'without a version'}: "
            f"pip install 'tinker=={CLIENTS}.*'"
        )
