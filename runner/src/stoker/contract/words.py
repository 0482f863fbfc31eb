"""How every part speaks: a line in the log, and the one line that outlives the pod."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

# Kubernetes keeps at most 4096 bytes of a termination message.
_MESSAGE_BYTES = 4000


def say(text: str) -> None:
    """Print one line of the runner's own, apart from the trainer's output."""
    write_line(sys.stderr, f"[stoker] {text}")


def write_line(stream: TextIO, line: str) -> None:
    """Write a line at once, so that those of several writers do not mix; from when nobody takes them they are dropped.

    A reader that went away, such as `head`, or `tee` at Ctrl-C, a full disk under the log, or a terminal that lacks a
    character is no reason to end a run, nor to keep it waiting for who would have read its output.
    """
    try:
        try:
            stream.write(f"{line}\n")
        except UnicodeEncodeError:
            stream.write(f"{line}\n".encode(stream.encoding, "backslashreplace").decode(stream.encoding))
        stream.flush()
    except OSError:
        # What is still in the buffer would fail again at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def write_termination_message(path: Path, text: str) -> None:
    """Write the line that `kubectl describe pod` shows; does nothing where no such file can be written."""
    try:
        # A cut through a character, or a stray byte of a file's name, must not reach the API server.
        cut = text.encode("utf-8", "replace")[:_MESSAGE_BYTES].decode("utf-8", "ignore")
        path.write_text(cut, encoding="utf-8")
    except OSError:
        return


def timestamp() -> str:
    """Return the time as files of ours carry it, e.g. `2026-11-22T06:41:41Z`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
