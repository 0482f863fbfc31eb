"""Running a command that must succeed, for its output."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import Protocol

from .errors import ClusterError


class Run(Protocol):
    """Runs a command where the cluster can be reached and returns its standard output; ClusterError if it fails."""

    def __call__(self, argv: Sequence[str], stdin: str = "") -> str:
        """Run ``argv``, with ``stdin`` as its standard input."""


def capture(argv: Sequence[str], environment: Mapping[str, str] | None = None, stdin: str = "") -> str:
    """Run a command and return its standard output.

    Raises:
        ClusterError: It failed or does not exist; the message holds the end of what it said.
    """
    try:
        done = subprocess.run(argv, env=environment, input=stdin, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ClusterError(f"{argv[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        raise ClusterError(f"{' '.join(argv)} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout
