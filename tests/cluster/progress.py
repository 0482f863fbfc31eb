"""Progress on standard error: what is being done, and how long it has taken since the start."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .errors import ClusterError

_started = time.monotonic()
_REPORT_SECONDS = 30


def say(message: str) -> None:
    """Print one line with the seconds since this program began."""
    print(f"cluster: {time.monotonic() - _started:6.1f}s  {message}", file=sys.stderr, flush=True)


@contextmanager
def step(message: str, detail: Callable[[], str] | None = None) -> Iterator[None]:
    """Print ``message`` and, if the work took longer than two seconds, how long when it is done.

    Args:
        message: What is being done.
        detail: Asked every half minute for what to say meanwhile.
    """
    say(message)
    began = time.monotonic()
    done = threading.Event()

    def report(words: Callable[[], str]) -> None:
        while not done.wait(_REPORT_SECONDS):
            say(f"{message}: {words()}")

    if detail:
        threading.Thread(target=report, args=[detail], daemon=True).start()
    try:
        yield
    finally:
        done.set()
    if (took := time.monotonic() - began) > 2:
        say(f"{message}: done in {took:.0f}s")


def wait_for(what: str, ready: Callable[[], bool], seconds: float, hint: str, interval: float = 0.2) -> None:
    """Poll ``ready`` until it is true.

    Args:
        what: Names the thing in the error, as in "etcd did not become ready".
        ready: Asked every ``interval`` seconds.
        seconds: How long to wait at most.
        hint: Where to look when it does not come.
        interval: Seconds between two questions.

    Raises:
        ClusterError: It was not true in time.
    """
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what} did not become ready within {seconds:.0f}s; {hint}")
        time.sleep(interval)
