"""Notices that nobody needs a run's samplers any more: no request reaches them, and the run itself makes no step."""

from __future__ import annotations

import http.client
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from stoker.contract.samplers import ADDRESSES, Traffic, api_key
from stoker.rank.pulse import FIRST_STEP, TRAINING, Beat
from stoker.rollouts.addresses import Address, addresses_in

_REQUEST_SECONDS = 5.0
_MOST_SECONDS_BETWEEN_LOOKS = 10.0
# vLLM's counter of requests that have ended, and its gauges of those that have not.
_ENDED = re.compile(r"^vllm:request_success_total(?:\{.*\})? (\S+)$", re.MULTILINE)
_OPEN = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{.*\})? (\S+)$", re.MULTILINE)


class Idleness:
    """How long nothing has happened.

    Args:
        seconds: how long that may be.
        now: seconds of a clock that never goes back.
    """

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds = seconds
        self._since = now
        self._ended: dict[str, float] = {}
        self._beat: tuple[int, str] | None = None

    def is_over(self, traffic: Traffic, beat: Beat | None, now: float) -> bool:
        """Return whether nothing has happened for too long.

        Args:
            traffic: of the samplers; none that answers proves nothing, so that counts as something.
            beat: the last sign of life of this node's first rank; None before it trains.
            now: seconds of the same clock.
        """
        ended = {name: done for name, (done, _) in traffic.items()}
        done = None if beat is None else (beat.step, beat.phase)
        if (
            not traffic
            or any(under_way for _, under_way in traffic.values())
            or any(self._ended.get(name) != number for name, number in ended.items())
            or done != self._beat
            or beat is None
            or beat.phase not in (FIRST_STEP, TRAINING)
        ):
            self._since = now
        self._ended |= ended
        self._beat = done
        return now - self._since >= self._seconds


class IdleWatch:
    """Looks at the samplers in a thread of its own.

    Args:
        seconds: how long nothing may happen; 0 for no limit.
        environ: the environment, with the samplers' addresses and key.

    Attributes:
        beat: the last sign of life of this node's first rank; to be kept up to date.
    """

    def __init__(self, seconds: int, environ: Mapping[str, str]) -> None:
        self.beat: Beat | None = None
        self._over = threading.Event()
        if seconds:
            addresses, key = addresses_in(environ.get(ADDRESSES, "")), api_key(environ)
            threading.Thread(
                target=self._watch, args=(seconds, lambda: traffic_of(addresses, key)), name="idle", daemon=True
            ).start()

    @property
    def is_over(self) -> bool:
        """Whether nothing has happened for too long."""
        return self._over.is_set()

    def _watch(self, seconds: int, look: Callable[[], Traffic]) -> None:
        idleness = Idleness(seconds, time.monotonic())
        while not self._over.wait(min(seconds / 4, _MOST_SECONDS_BETWEEN_LOOKS)):
            if idleness.is_over(look(), self.beat, time.monotonic()):
                self._over.set()


def traffic_of(addresses: Sequence[Address], key: str) -> dict[str, tuple[float, float]]:
    """Return the requests of each sampler that answers, by its address."""
    found = {}
    for address in addresses:
        with suppress(OSError):
            places = {entry[4][0] for entry in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)}
            for place in sorted(map(str, places)):
                text = _metrics(place, address, key)
                if text is not None:
                    found[f"{place}:{address.port}"] = (_sum(_ENDED, text), _sum(_OPEN, text))
    return found


def _metrics(place: str, address: Address, key: str) -> str | None:
    """Return vLLM's metrics; None if it does not answer with them."""
    connection = http.client.HTTPConnection(place, address.port, timeout=_REQUEST_SECONDS)
    try:
        headers = {"Host": f"{address.host}:{address.port}", **({"Authorization": f"Bearer {key}"} if key else {})}
        connection.request("GET", "/metrics", headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return text if answer.status == 200 and _OPEN.search(text) else None


def _sum(pattern: re.Pattern[str], text: str) -> float:
    return sum(float(number) for number in pattern.findall(text))
