"""The replicas of a fleet: where they are, and what each answers."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from http.client import HTTPException
from pathlib import Path

from stoker.serve.fleet.desired import Held, ReplicaStatus

# A replica that loads something takes longer, and is asked again.
_SECONDS = 5.0
_THREADS = 64


class Lookup:
    """Looks up the addresses that a `HOST:PORT` stands for.

    Args:
        place: the `HOST:PORT`.
    """

    def __init__(self, place: str) -> None:
        self._host, _, self._port = place.rpartition(":")
        self._last: frozenset[str] = frozenset()

    def __call__(self) -> frozenset[str]:
        """Return them, each as `IP:PORT`: none if the name is not known, the last ones if no name server answers."""
        try:
            found = socket.getaddrinfo(self._host.strip("[]"), int(self._port), type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno == socket.EAI_AGAIN:
                return self._last
            found = []
        ips = (str(one[4][0]) for one in found)
        self._last = frozenset(f"[{ip}]:{self._port}" if ":" in ip else f"{ip}:{self._port}" for ip in ips)
        return self._last


class Replicas:
    """The replicas of a fleet.

    Args:
        ready: returns the addresses that requests reach.
        known: returns all addresses, of replicas that still start too.
        key: file with the key of their API; None for none. It is read each time, so that the key may change.
    """

    def __init__(
        self, ready: Callable[[], Collection[str]], known: Callable[[], Collection[str]], key: Path | None
    ) -> None:
        self.ready, self._known, self._key = ready, known, key
        # The addresses are those of pods, so requests never go through a proxy that the environment may name.
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        self._threads = ThreadPoolExecutor(_THREADS, "replica")

    def known(self) -> frozenset[str]:
        """Return all addresses."""
        return frozenset(self._known()) | frozenset(self.ready())

    def ask(self, names: Collection[str], generation: int = 0) -> dict[str, ReplicaStatus | str]:
        """Ask replicas at once, and return what each answered, or why it did not.

        Args:
            names: their addresses.
            generation: has them look, told that there is this one; 0 only asks.
        """
        body = json.dumps({"generation": generation}).encode() if generation else None
        return dict(zip(names, self._threads.map(lambda name: self._ask(name, body), names), strict=True))

    def _ask(self, name: str, body: bytes | None) -> ReplicaStatus | str:
        try:
            headers = {"Content-Type": "application/json"}
            if self._key:
                headers["Authorization"] = f"Bearer {self._key.read_text().strip()}"
            request = urllib.request.Request(f"http://{name}/{'look' if body else 'adapters'}", body, headers)
            with self._open(request, timeout=_SECONDS) as answer:
                return _seen(json.load(answer))
        except urllib.error.HTTPError as error:
            return f"it answers {error.code}" + (" to the key" if error.code == 401 else "")
        except (OSError, HTTPException) as error:
            return f"it does not answer: {getattr(error, 'reason', None) or error}"
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            return f"its answer is not that of a replica ({type(error).__name__}: {error})"


def _seen(data: Mapping[str, object]) -> ReplicaStatus:
    held = data.get("fleet")
    if held is None:
        return ReplicaStatus(bool(data["ready"]), None)
    if not isinstance(held, dict):
        raise TypeError("fleet must be a JSON object")
    return ReplicaStatus(bool(data["ready"]), Held(**{one.name: held[one.name] for one in fields(Held)}))
