"""What `up` remembers between two runs: which code made the cluster, and whether it got to the end."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from ..progress import say
from .layout import LOCK, STATE


@dataclass(frozen=True)
class State:
    """The record of a finished `up`.

    Attributes:
        fingerprint: Of the package that made the cluster.
    """

    fingerprint: str


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
