"""The exit codes a run can end with, and the one exception that carries them."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a run ended, as the process exit code (numbers from BSD's sysexits.h).

    The retry rules of the runtimes key on these numbers, so they are a contract.
    """

    FINISHED = 0
    USAGE = 64
    BAD_DATA = 65
    NO_INPUT = 66
    UNAVAILABLE = 69
    CRASHED = 70
    STOPPED = 75
    CONFIG = 78

    @property
    def is_final(self) -> bool:
        """True if running the same thing again cannot help, so that Kubernetes must not retry."""
        return self in (ExitCode.USAGE, ExitCode.BAD_DATA, ExitCode.NO_INPUT, ExitCode.CONFIG)

    @property
    def meaning(self) -> str:
        """What the code says, in a few words."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.FINISHED: "finished",
    ExitCode.USAGE: "wrong arguments",
    ExitCode.BAD_DATA: "the data does not fit the method",
    ExitCode.NO_INPUT: "model or data missing",
    ExitCode.UNAVAILABLE: "a peer or the rendezvous is unavailable",
    ExitCode.CRASHED: "the trainer crashed",
    ExitCode.STOPPED: "stopped by a signal, resumable",
    ExitCode.CONFIG: "wrong configuration",
}

# When several nodes of one run report different endings, the first of these found is the run's: an ending
# that no retry can mend says most, a lost peer (often only the echo of another node's ending) least.
PRECEDENCE = (
    ExitCode.CONFIG,
    ExitCode.USAGE,
    ExitCode.NO_INPUT,
    ExitCode.BAD_DATA,
    ExitCode.STOPPED,
    ExitCode.CRASHED,
    ExitCode.UNAVAILABLE,
    ExitCode.FINISHED,
)


class RunError(Exception):
    """An ending that the user can do something about.

    Args:
        code: the exit code to end with.
        message: what was wrong, where, and what to write instead; one line per problem.
    """

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
