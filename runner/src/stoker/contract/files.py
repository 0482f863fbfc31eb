"""Small files that other processes read while we write them: either complete or missing."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

LOST_AND_FOUND = "lost+found"
"""A folder at the root of some volumes, which root alone can read, and which holds nothing of users."""

# Read and write.
_GROUP = 0o060


def write_json(path: Path, data: Any) -> None:
    """Write a JSON file atomically: readers see the old content or the new, never a part.

    Raises:
        OSError: the folder cannot be written to.
    """
    write_text(path, json.dumps(data, indent=2, sort_keys=True, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file atomically, as `write_json` does.

    Raises:
        OSError: the folder cannot be written to.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The name is unique to the process: several nodes may write the same file on a shared volume.
    draft = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def share_with_group(path: Path) -> None:
    """Let the group read and write a file that a library made private to its user.

    The next reader of a volume (another pod, the server) shares group 0, not the user. A file of another user stays as
    it is: only that user may share it.
    """
    mode = path.stat().st_mode
    if mode & _GROUP != _GROUP:
        with suppress(PermissionError):
            path.chmod(mode | _GROUP)


def read_json(path: Path) -> Any | None:
    """Return a JSON file's content; None if it is missing, unreadable or not JSON."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None


def exists(path: Path) -> bool:
    """Return whether a path exists and can be reached; `Path.exists` would raise if it cannot be reached."""
    try:
        path.stat()
    except OSError:
        return False
    return True
