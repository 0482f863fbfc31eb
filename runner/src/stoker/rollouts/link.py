"""Carries requests and answers between an event loop and the process of users' code."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from stoker.rollouts import frames
from stoker.rollouts.failures import UserCodeError, UserCodeLostError


class Link:
    """The pipes to one life of the process, in the running event loop.

    Args:
        process: the process, after its first words.
        life: which of its lives it is.
    """

    def __init__(self, process: subprocess.Popen[bytes], life: int) -> None:
        self._process = process
        self._life = life
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self._dead = False
        self._unsent: asyncio.Queue[bytes] = asyncio.Queue()
        self._transports: list[asyncio.BaseTransport] = []
        self._tasks = [self._loop.create_task(self._receive()), self._loop.create_task(self._send())]
        self._pidfd: int | None = None
        # Its pipes may stay open in processes that it forked, so that only the kernel knows of its death.
        with suppress(OSError):
            self._pidfd = os.pidfd_open(process.pid)
            self._loop.add_reader(self._pidfd, self._gone)

    def send(self, request: Mapping[str, Any]) -> asyncio.Future[Any]:
        """Send a request; return what will hold its answer.

        Raises:
            TypeError: a value has no JSON form.
        """
        number = next(self._numbers)
        packed = frames.packed({"number": number, **request})
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._dead:
            _fail(future, UserCodeLostError(self._life))
            return future
        self._waiting[number] = future
        future.add_done_callback(lambda _: self._waiting.pop(number, None))
        self._unsent.put_nowait(packed)
        return future

    def check_loop(self) -> None:
        """Refuse another event loop than the one that the pipes are in, where no answer would come."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("the process of users' code is asked from a second event loop")

    def show_stacks(self) -> None:
        """Have the process write what its threads do to the log."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)

    def close(self) -> None:
        """Forget the process; from any thread."""
        with suppress(RuntimeError):  # the loop is closed, and its transports with it
            self._loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        self._gone()
        for task in self._tasks:
            task.cancel()
        for transport in self._transports:
            transport.close()

    async def _send(self) -> None:
        assert self._process.stdin is not None
        transport, protocol = await self._loop.connect_write_pipe(
            lambda: asyncio.streams.FlowControlMixin(self._loop), self._process.stdin
        )
        self._transports.append(transport)
        writer = asyncio.StreamWriter(transport, protocol, None, self._loop)
        with suppress(ConnectionError):
            while True:
                writer.write(await self._unsent.get())
                await writer.drain()

    async def _receive(self) -> None:
        assert self._process.stdout is not None
        reader = asyncio.StreamReader()
        transport, _ = await self._loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._process.stdout
        )
        self._transports.append(transport)
        while (answer := await frames.received(reader)) is not None:
            future = self._waiting.get(answer["number"])
            if future is None or future.done():
                continue
            if "failed" in answer:
                _fail(future, UserCodeError(*answer["failed"]))
            else:
                future.set_result(answer["result"])
        self._gone()

    def _gone(self) -> None:
        if self._dead:
            return
        self._dead = True
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        for future in list(self._waiting.values()):
            if not future.done():
                _fail(future, UserCodeLostError(self._life))


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    """Give an error to whoever waits; it is no news if nobody does."""
    future.set_exception(error)
    future.exception()
