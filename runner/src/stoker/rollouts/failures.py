"""How users' code fails."""

from __future__ import annotations

# What an exception says may be a whole page.
_LONGEST = 500


def said_by(error: BaseException) -> str:
    """Return what an exception is and says, in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= _LONGEST else text[:_LONGEST] + '…'}"


class UserCodeError(Exception):
    """A user's function failed.

    Args:
        function: its name.
        problem: what it did, to follow its name in a sentence.
        trace: its traceback, or where it is.
        advice: what to do.
    """

    def __init__(self, function: str, problem: str, trace: str = "", advice: str = "mend the function") -> None:
        super().__init__(function, problem)
        self.function = function
        self.problem = problem
        self.trace = trace
        self.advice = advice


class UserCodeLostError(Exception):
    """The process of users' code is gone, and with it what it was doing.

    Args:
        life: which of its lives ended, to give to `UserCode.revive`.
    """

    def __init__(self, life: int) -> None:
        super().__init__(life)
        self.life = life
