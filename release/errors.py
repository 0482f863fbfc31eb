"""How a step of a release ends when it cannot be done."""

from __future__ import annotations

USAGE, DATA, UNAVAILABLE, CONFIG = 64, 65, 69, 78
"""Exit codes, as sysexits.h has them."""


class ReleaseError(RuntimeError):
    """One message for whoever releases, with the process's exit code.

    Args:
        code: one of the codes above.
        message: what was wrong and what to do instead.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
