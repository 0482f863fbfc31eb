"""The exit codes of a run, and the exception that carries one."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a run ended, as the process exit code (numbers from BSD's sysexits.h).

    The numbers are a contract: the runtimes' retry rules use them.
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
        """True if a retry cannot help, so that Kubernetes must not try again."""
        return self in (ExitCode.USAGE, ExitCode.BAD_DATA, ExitCode.NO_INPUT, ExitCode.CONFIG)

    @property
    def meaning(self) -> str:
        """What the code means, in a few words."""
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

# If nodes of one run end differently, the first of these codes is the run's. Codes that no retry can help come first. A
# lost peer comes late, because it is often only the effect of another node's ending.
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
    """An error that the user can fix.

    Args:
        code: the exit code to end with.
        message: what is wrong, where, and what to write instead; one line per problem.
    """

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
