"""How every part speaks: progress lines, error lines, and the one line that outlives the pod."""

from __future__ import annotations

import os
import re
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from stoker.contract.secrets import hide

# Kubernetes keeps at most 4096 bytes of a termination message.
_MESSAGE_BYTES = 4000
# Characters that a terminal obeys, but for tabs and ends of lines.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
REPLACED = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """Return a text without what a terminal obeys: pods, models and files may hold escape sequences."""
    return _CONTROLS.sub(REPLACED, text.replace("\r\n", "\n"))


def say(text: str) -> None:
    """Print a progress line, told apart from the trainer's output by its prefix."""
    write_line(sys.stderr, f"[stoker] {printable(hide(text))}")


def report_error(message: str) -> None:
    """Print an error that ends a command: what is wrong, where, and what to write instead.

    Args:
        message: one line for each problem; every line gets the prefix.
    """
    for line in hide(message).splitlines():
        write_line(sys.stderr, f"stoker: error: {printable(line)}")


def report_traceback() -> None:
    """Print the traceback of the exception that is being handled."""
    write_line(sys.stderr, hide(traceback.format_exc().rstrip()))


def write_line(stream: TextIO, line: str) -> None:
    """Write a line at once, so that lines of several writers do not mix. Lines that nobody takes are dropped.

    A run goes on when its reader is gone (`head`, or `tee` after Ctrl-C), when the disk under the log is full, and when
    a terminal lacks a character.
    """
    try:
        try:
            stream.write(f"{line}\n")
        except UnicodeEncodeError:
            stream.write(f"{line}\n".encode(stream.encoding, "backslashreplace").decode(stream.encoding))
        stream.flush()
    except OSError:
        # The rest of the buffer would fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def write_termination_message(path: Path, text: str) -> None:
    """Write the line that `kubectl describe pod` shows; do nothing if the file cannot be written."""
    try:
        # Half a character, or a stray byte from a file name, must not reach the API server.
        cut = hide(text).encode("utf-8", "replace")[:_MESSAGE_BYTES].decode("utf-8", "ignore")
        path.write_text(cut, encoding="utf-8")
    except OSError:
        return


def timestamp() -> str:
    """Return the time as our files write it, for example `2026-11-22T06:41:41Z`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
