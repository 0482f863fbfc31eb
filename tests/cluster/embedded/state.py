"""What `up` remembers between two runs: which code made the cluster, and whether it got to the end."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from ..progress import say
from .layout import LOCK, STATE

_PACKAGE = Path(__file__).resolve().parent.parent
#: Parts of the package that the running cluster does not depend on.
_NOT_PART = {"tests", "testing.py", "__pycache__", "README.md"}


@dataclass(frozen=True)
class State:
    """The record of a finished `up`.

    Attributes:
        fingerprint: Of the package that made the cluster.
    """

    fingerprint: str


def fingerprint() -> str:
    """Return a hash over every file of this package that decides what the cluster is, pins and manifests included."""
    digest = hashlib.sha256()
    for file in sorted(_PACKAGE.rglob("*")):
        inside = file.relative_to(_PACKAGE)
        if file.is_file() and not _NOT_PART.intersection(inside.parts):
            digest.update(str(inside).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def read() -> State | None:
    """Return the record of the last `up` that finished, None if there is none that can be read."""
    try:
        return State(**json.loads(STATE.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write(state: State) -> None:
    """Record that `up` finished."""
    temporary = STATE.with_suffix(".new")
    temporary.write_text(json.dumps(asdict(state)))
    temporary.rename(STATE)


@contextmanager
def lock() -> Iterator[None]:
    """Keep a second `up` or `down` on this machine waiting until this one is done."""
    with LOCK.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another `up` or `down` on this machine to finish")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
