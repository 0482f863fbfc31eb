"""A program that measures in another environment for a benchmark; each order and each answer is a line of JSON."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.jobs import ROOT, JobFailed, kill

_END_SECONDS = 30.0
# The variable with the file descriptor of the answers.
_ANSWERS = "BENCHMARK_ANSWERS"
_STDERR = 2


class Child:
    """Such a program, started at once; what it says on stderr is shown.

    Args:
        command: of it.
        patience: seconds that an answer may take.
        variables: of its environment, beside this program's.
    """

    def __init__(
        self, command: Sequence[str | Path], patience: float, variables: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._name, self._patience, self._read = Path(command[1]).name, patience, b""
        paths = (ROOT, ROOT / "runner" / "src", ROOT / "tests")
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "HF_HUB_OFFLINE": "1", **variables}
        self._answers, theirs = os.pipe()
        env[_ANSWERS] = str(theirs)
        try:
            # What it and its libraries print is no answer.
            self._process = subprocess.Popen(
                [*command], env=env, stdin=subprocess.PIPE, stdout=_STDERR, pass_fds=(theirs,), bufsize=0
            )
        finally:
            os.close(theirs)

    def __enter__(self) -> Child:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it: it has no more orders, and after a while it is killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            kill(self._process.pid)
            self._process.wait()
        os.close(self._answers)

    def ask(self, do: str, **order: Any) -> Any:
        """Give an order and return the answer.

        Raises:
            JobFailed: it ended, or took too long.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **order}).encode() + b"\n")
        except BrokenPipeError as error:
            raise self._ended() from error
        return json.loads(self._line(do))

    def _line(self, do: str) -> bytes:
        end = time.monotonic() + self._patience
        while b"\n" not in self._read:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                raise JobFailed(f"{self._name} did not {do} within {self._patience:g} s")
            if not (more := os.read(self._answers, 2**16)):
                raise self._ended()
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _ended(self) -> JobFailed:
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            kill(self._process.pid)
            self._process.wait()
        return JobFailed(f"{self._name} ended with {self._process.returncode}: its message is above")


def answer(handlers: Mapping[str, Callable[..., Any]]) -> None:
    """Answer orders until there are no more.

    Args:
        handlers: by what is to be done; each gets the order's other words.
    """
    with os.fdopen(int(os.environ[_ANSWERS]), "w") as answers:
        for line in sys.stdin:
            order = json.loads(line)
            print(json.dumps(handlers[order.pop("do")](**order)), file=answers, flush=True)
