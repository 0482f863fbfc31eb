"""Clients that read answers token by token, for benchmarks/fleet.py: how long they wait for the next one."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.jobs import JobFailed
from benchmarks.paired import highest
from benchmarks.serving_pod import PROMPT

T = TypeVar("T")
_SECONDS = 120.0
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


@dataclass(frozen=True, slots=True)
class Gap:
    """Between two tokens of one answer.

    Attributes:
        stream: number of the client.
        begin: when the first one came, on the machine's monotonic clock.
        end: when the second one came.
    """

    stream: int
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Streamed:
    """What clients saw of some time.

    Attributes:
        gaps: seconds of each gap.
        reloads: begin and end of each reload, from before its files are written until it is served.
        longest: seconds of the longest gap that each reload fell into, for each client.
    """

    gaps: Sequence[float]
    reloads: Sequence[tuple[float, float]] = ()
    longest: Sequence[float] = ()

    @property
    def pause(self) -> float:
        """Return the seconds that 99 of 100 gaps do not exceed: of those with a reload, where there is one."""
        return highest(self.longest or self.gaps)

    def __str__(self) -> str:
        """Say what it was like."""
        return f"{len(self.gaps)} gaps, {len(self.reloads)} reloads, 99 of 100 within {1000 * self.pause:.1f} ms"


def around(gaps: Iterable[Gap], reloads: Iterable[tuple[float, float]]) -> list[float]:
    """Return the seconds of the longest gap that each reload fell into, for each client that had one. Pure."""
    every = [*gaps]
    found: list[float] = []
    for begin, end in reloads:
        longest: dict[int, float] = {}
        for gap in every:
            if gap.begin < end and gap.end > begin:
                longest[gap.stream] = max(longest.get(gap.stream, 0.0), gap.end - gap.begin)
        found += longest.values()
    return found


def gaps_during(url: str, model: str, clients: int, tokens: int, what: Callable[[], T]) -> tuple[list[Gap], T]:
    """Have clients read one answer after the other while something happens; return their gaps then, and its result.

    Args:
        url: of vLLM.
        model: whom they ask.
        clients: how many.
        tokens: of an answer.
        what: happens once each of them reads.

    Raises:
        JobFailed: an answer failed, or nothing came for too long.
    """
    over = threading.Event()
    found: list[list[Gap]] = [[] for _ in range(clients)]

    def read(number: int) -> None:
        while not over.is_set():
            body = {"model": model, "prompt": f"{number}. {PROMPT}", "max_tokens": tokens, "ignore_eos": True}
            text = json.dumps({**body, "temperature": 0, "stream": True}).encode()
            request = urllib.request.Request(f"{url}/v1/completions", text, {"Content-Type": "application/json"})
            last = 0.0
            with _open(request, timeout=_SECONDS) as answer:
                for line in answer:
                    now = time.monotonic()
                    if not line.startswith(b"data: {"):
                        continue
                    if b'"error"' in line:
                        raise JobFailed(f"an answer failed: {line.decode(errors='replace')}")
                    if last:
                        found[number].append(Gap(number, last, now))
                    last = now
                    if over.is_set():
                        break

    with ThreadPoolExecutor(clients) as threads:
        reading = [threads.submit(read, number) for number in range(clients)]
        try:
            _until_all_read(found, lambda: any(one.done() for one in reading))
            begin = time.monotonic()
            result = what()
            end = time.monotonic()
        finally:
            over.set()
        for one in reading:
            if error := one.exception(_SECONDS):
                raise JobFailed(f"an answer failed: {type(error).__name__}: {error}") from error
    return [gap for gaps in found for gap in gaps if begin <= gap.begin < end], result


def _until_all_read(found: Sequence[Sequence[Gap]], ended: Callable[[], bool]) -> None:
    end = time.monotonic() + _SECONDS
    while not all(found) and not ended():
        if time.monotonic() > end:
            raise JobFailed(f"not all clients had a token within {_SECONDS:.0f} s")
        time.sleep(0.01)
