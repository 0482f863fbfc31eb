"""Replicas of a sampler in one process: real HTTP on loopback, the folder of versions, and whatever goes wrong.

They answer as vLLM 0.31 and `stoker adapters watch` do. Each has a port of its own; a thread has them all.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.serve.adapters.versions import read_published
from stoker.serve.weights import files

BASE = "base"


@dataclass
class FakeReplica:
    """A replica, and what it is told to do wrong.

    Attributes:
        folder: of published versions.
        port: where it listens.
        loaded: names of the versions that it serves.
        delay: seconds until it has loaded what is new.
        think: seconds for a completion.
        statuses: what the next completions answer, before any succeeds: a status, or `drop` and `hang`.
        shown: what the next requests to /adapters answer: a status, or `drop`.
        refuses: a problem that it has with every version.
        ready: what /adapters says.
        stuck: it looks for nothing new.
        close_after: it closes each connection after an answer.
        weights: it takes whole weights in place.
        damaged: names of files of weights that it cannot take.
        server: what /adapters says of its base model.
        length: the longest prompt and answer.
        key: it answers nobody who does not send it.
        watched: it has a watcher, unlike a server that is no sampler.
        sees: what /look says of the folder of a run; None for nothing.
        counted: requests by path.
        asked: model and ordinal (the first token of the prompt) of each completion.
    """

    folder: Path
    port: int = 0
    loaded: set[str] = field(default_factory=set)
    delay: float = 0.0
    think: float = 0.0
    statuses: deque[int | str] = field(default_factory=deque)
    shown: deque[int | str] = field(default_factory=deque)
    refuses: str = ""
    ready: bool = True
    stuck: bool = False
    close_after: bool = False
    weights: bool = False
    damaged: set[str] = field(default_factory=set)
    server: dict[str, Any] = field(default_factory=dict)
    length: int = 4096
    base: str = BASE
    key: str = ""
    watched: bool = True
    sees: bool | None = None
    named: list[str] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)
    asked: list[tuple[str, int]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    wrong: dict[str, str] = field(default_factory=dict)
    busy: int = 0
    busiest: int = 0
    transports: set[asyncio.BaseTransport] = field(default_factory=set)
    listening: asyncio.AbstractServer | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def answer(self, path: str, body: dict[str, Any], key: str) -> tuple[int | str, Any]:
        """Return status and answer to a request."""
        if self.key and key != self.key:
            return 401, {"error": {"message": "The API key is missing or wrong."}}
        if path in ("/adapters", "/look") and not self.watched:
            return 404, {"error": {"message": "There is no such path."}}
        self.counted[path] += 1
        if path == "/adapters":
            return (self.shown.popleft(), {}) if self.shown else (200, self._shown())
        if path == "/look":
            async with self._turn:
                await self._look()
            if "folder" not in body or self.sees is None:
                return 200, self._shown()
            self.named.append(body["folder"])
            return 200, {**self._shown(), "sees": self.sees}
        if path == "/v1/models":
            return 200, {"data": [{"id": self.base, "parent": None, "max_model_len": self.length}]}
        if path != "/v1/completions":
            return 404, "no such path"
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            return await self._complete(body)
        finally:
            self.busy -= 1

    async def _look(self) -> None:
        if self.stuck or self.refuses:
            return
        if self.weights:
            await self._take()
            return
        there = {version.name for version in read_published(self.folder)}
        if there - self.loaded:
            await asyncio.sleep(self.delay)
        self.loaded = there

    async def _take(self) -> None:
        run = files.newest_run(self.folder)
        held = next((int(name.rpartition(":")[2]) for name in self.loaded if name.startswith(f"{run}:")), None)
        found = files.read(self.folder / run)
        self.taken += [file.path.name for file in files.route(found, held, self.damaged)]
        if way := files.route(found, held, self.damaged):
            await asyncio.sleep(self.delay)
            self.loaded = {f"{run}:{way[-1].version}"}
        newest = f"{run}:{max((file.version for file in found), default=-1)}"
        wrong = sorted(self.damaged & {file.path.name for file in found})
        self.wrong = {newest: f"{wrong[0]}: it is damaged"} if wrong and newest not in self.loaded else {}

    async def _complete(self, body: dict[str, Any]) -> tuple[int | str, Any]:
        if self.think:
            await asyncio.sleep(self.think)
        if self.statuses:
            status = self.statuses.popleft()
            if status == "hang":
                await asyncio.sleep(3600)
            if status == "abort":
                return 200, self._completion(body, "abort", [1])
            if status == "empty":
                return 200, self._completion(body, "stop", [])
            if status == "other":
                return 200, {**self._completion(body, "stop", [1]), "model": "another"}
            if status != 200:
                return status, {"error": {"message": f"the server said {status}"}}
        model = body["model"]
        if model != self.base and model not in self.loaded:
            return 404, {"error": {"message": f"The model `{model}` does not exist."}}
        self.asked.append((model, body["prompt"][0]))
        self.bodies.append(body)
        return 200, self._completion(body, "length", [self.port % 1000] * body["max_tokens"])

    @staticmethod
    def _completion(body: dict[str, Any], finish: str, ids: list[int]) -> dict[str, Any]:
        choice = {"token_ids": ids, "finish_reason": finish, "logprobs": {"token_logprobs": [-0.5] * len(ids)}}
        return {"model": body["model"], "choices": [choice]}

    def _shown(self) -> dict[str, Any]:
        names = {version.name for version in read_published(self.folder)}
        problems = dict.fromkeys(names, self.refuses) if self.refuses else self.wrong
        server = {**self.server, "weights": 1} if self.weights else self.server
        return {"ready": self.ready, "loaded": sorted(self.loaded), "problems": problems, "server": server}


class Replicas:
    """Replicas and the thread that runs them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._all: list[FakeReplica] = []

    def start(self, count: int = 1, **told: Any) -> list[FakeReplica]:
        """Start replicas."""
        made = [FakeReplica(self.folder, **told) for _ in range(count)]
        for replica in made:
            self._do(self._listen(replica))
        self._all += made
        return made

    def kill(self, replica: FakeReplica) -> None:
        """End a replica as SIGKILL does."""
        self._do(self._end(replica))

    def revive(self, replica: FakeReplica, **told: Any) -> None:
        """Start a replica anew, at its old address, with nothing loaded."""
        replica.loaded = set()
        for name, value in told.items():
            setattr(replica, name, value)
        self._do(self._listen(replica))

    def drop_idle(self, replica: FakeReplica) -> None:
        """Close the connections that a replica has open."""
        self._do(self._drop(replica))

    def close(self) -> None:
        """End them all."""
        for replica in self._all:
            self.kill(replica)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    async def _listen(self, replica: FakeReplica) -> None:
        server = await asyncio.get_running_loop().create_server(
            lambda: _Protocol(replica), "127.0.0.1", replica.port, reuse_address=True
        )
        replica.listening, replica.port = server, server.sockets[0].getsockname()[1]

    async def _end(self, replica: FakeReplica) -> None:
        if replica.listening is not None:
            replica.listening.close()
        await self._drop(replica)

    @staticmethod
    async def _drop(replica: FakeReplica) -> None:
        for transport in [*replica.transports]:
            transport.abort()  # type: ignore[attr-defined]
        await asyncio.sleep(0)


class _Protocol(asyncio.Protocol):
    def __init__(self, replica: FakeReplica) -> None:
        self._replica = replica
        self._data = b""
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._replica.transports.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._replica.transports.discard(self._transport)
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, rest = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        first, *lines = head.decode().split("\r\n")
        length = next((int(line[15:]) for line in lines if line.lower().startswith("content-length:")), 0)
        if len(rest) < length:
            return
        body, self._data = rest[:length], rest[length:]
        key = next((line[22:] for line in lines if line.lower().startswith("authorization: bearer ")), "")
        self._task = asyncio.ensure_future(self._reply(first.split(" ")[1], json.loads(body or b"{}"), key))

    async def _reply(self, path: str, body: dict[str, Any], key: str) -> None:
        status, data = await self._replica.answer(path, body, key)
        if status == "drop":
            self._transport.abort()
            return
        text = json.dumps(data).encode()
        closing = "Connection: close\r\n" if self._replica.close_after else ""
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(text)}\r\n{closing}\r\n"
        self._transport.write(head.encode() + text)
        if closing:
            self._transport.close()


@contextmanager
def replicas_of(folder: Path) -> Iterator[Replicas]:
    """Have replicas of a folder, and end them."""
    made = Replicas(folder)
    try:
        yield made
    finally:
        made.close()


def until(what: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait until something is true."""
    import time

    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.005)


def urls(replicas: Sequence[FakeReplica]) -> str:
    """Return the addresses of replicas as a user writes them."""
    return ",".join(f"http://127.0.0.1:{replica.port}" for replica in replicas)
