"""The table of requests whose answers come later."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.tinker.refusals import RefusedError

JSON, PROTOBUF = "application/json", "application/x-protobuf"

# A client asks for an answer at once and again after a lost connection; an hour is far more than it needs.
_SECONDS = 3600.0
_MOST = 4096
_MOST_BYTES = 2**30


@dataclass(slots=True)
class Future:
    """A request whose answer comes later.

    Attributes:
        request_id: its name for the client.
        body: the answer, once it is there.
        kind: its content type.
        answers: samples that it will hold.
        size: bytes of the request, which are held until the answer is there.
    """

    request_id: str
    body: bytes = b""
    kind: str = JSON
    answers: int = 0
    size: int = 0
    _done: threading.Event = field(default_factory=threading.Event)
    _since: float = 0.0

    def finish(self, answer: Mapping[str, Any] | bytes) -> None:
        """Set the answer: JSON, or a message of protobuf."""
        self.kind = PROTOBUF if isinstance(answer, bytes) else JSON
        self.body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self._since = time.monotonic()
        self._done.set()

    def fail(self, message: str, *, user: bool) -> None:
        """Set an error as the answer.

        Args:
            message: what is wrong, and what to do.
            user: the client can correct it.
        """
        self.finish(_failure(message, user))

    def wait(self, seconds: float) -> bool:
        """Return whether the answer is there, after so many seconds at most."""
        return self._done.wait(seconds)

    @property
    def held(self) -> int:
        """Bytes that are held: of the request, and then of the answer."""
        return len(self.body) if self._done.is_set() else self.size

    def older(self, seconds: float) -> bool:
        """Return whether the answer has been there for so long."""
        return self._done.is_set() and time.monotonic() - self._since > seconds


class Futures:
    """The requests of one life of the endpoint.

    Args:
        life: what tells this life from others; part of every request's name.
        most: requests that may be in the table.
        seconds: how long an answer is kept.
        most_bytes: of requests and answers in the table.
    """

    def __init__(self, life: str, most: int = _MOST, seconds: float = _SECONDS, most_bytes: int = _MOST_BYTES) -> None:
        self._life, self._most, self._seconds, self._most_bytes = life, most, seconds, most_bytes
        self._lock = threading.Lock()
        self._count = 0
        self._found: dict[str, Future] = {}
        self._keys: dict[Hashable, Future] = {}

    def open(self, key: Hashable | None, begin: Callable[[Future], None], size: int = 0) -> Future:
        """Return the future of a request; the same one if a client sends it twice.

        Args:
            key: what is the same when a client sends a request again; None if nothing is.
            begin: starts the work of a new request, in the order of the calls.
            size: bytes of the request.

        Raises:
            RefusedError: too many requests wait (429).
        """
        with self._lock:
            if key is not None and key in self._keys:
                return self._keys[key]
            self._tidy(size)
            if len(self._found) >= self._most:
                raise RefusedError(f"{self._most} requests wait for their answers: ask again later", 429)
            if self._over(size) > 0:
                raise RefusedError(
                    f"requests of {self._most_bytes / 2**20:g} MiB wait for their answers: ask again later", 429
                )
            self._count += 1
            future = Future(f"{self._life}-{self._count}", size=size)
            begin(future)
            self._found[future.request_id] = future
            if key is not None:
                self._keys[key] = future
            return future

    def find(self, request_id: str) -> Future:
        """Return a request's future.

        Raises:
            RefusedError: it is lost (404), and what to do; with another status the client would ask again and again.
        """
        with self._lock:
            if request_id in self._found:
                return self._found[request_id]
        life, _, number = request_id.rpartition("-")
        if life == self._life and number.isdecimal():
            raise RefusedError(f"the answer of {request_id} is no longer kept: fetch answers within an hour", 404)
        raise RefusedError(
            f"request {request_id!r} was lost when the endpoint started again: make a new ServiceClient, and go on "
            "from the last checkpoint with create_training_client_from_state_with_optimizer",
            404,
        )

    def _over(self, size: int) -> int:
        """Return how many bytes there are too many with a request of that size."""
        return sum(future.held for future in self._found.values()) + size - self._most_bytes

    def _tidy(self, size: int) -> None:
        self._drop([future for future in self._found.values() if future.older(self._seconds)])
        # Answers that were never fetched leave before requests are turned away; the oldest first.
        answers = [future for future in self._found.values() if future.older(0.0)]
        leave = self._most // 2 if len(self._found) >= self._most else 0
        over = self._over(size) - sum(future.held for future in answers[:leave])
        while over > 0 and leave < len(answers):
            over -= answers[leave].held
            leave += 1
        self._drop(answers[:leave])

    def _drop(self, futures: Sequence[Future]) -> None:
        for future in futures:
            del self._found[future.request_id]
        gone = {id(future) for future in futures}
        if gone:
            self._keys = {key: future for key, future in self._keys.items() if id(future) not in gone}


def _failure(message: str, user: bool) -> dict[str, str]:
    return {"error": message, "category": "user" if user else "server"}
