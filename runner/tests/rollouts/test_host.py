"""How the process of users' code calls the tools of an answer: in which order, and which of them at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from stoker.rollouts.host import Host


class Room:
    """An environment that takes a while to change."""

    def reset(self, **row: Any) -> None:
        """Begin an episode."""
        self.value, self.inside = 1, 0

    def double(self) -> int:
        """Double the value."""
        before = self.value
        time.sleep(0.1)
        self.value = 2 * before
        return self.value

    async def meet(self) -> str:
        """Wait for another call."""
        self.inside += 1
        while self.inside < 2:
            await asyncio.sleep(0.01)
        return "met"


def called_twice(name: str, *tools: Callable[..., Any]) -> list[str]:
    """Return the answers to two calls at once in one episode, with a `Room` and other tools."""

    async def call(host: Host) -> str:
        asked = {"do": "tool", "name": name, "episode": 0, "arguments": {}, "seconds": 10, "limit": "the limit"}
        answer = await host.do(asked)
        return str(answer["content"])

    async def twice() -> list[str]:
        host = Host()
        host._tools, host._factories, host._idle = [*tools], {"": Room}, {"": []}
        await host.do({"do": "open", "name": "", "episode": 0, "columns": {}, "seconds": 10, "limit": "the limit"})
        return [*await asyncio.gather(call(host), call(host))]

    return asyncio.run(twice())


def test_methods_of_an_environment_that_are_not_async_follow_each_other() -> None:
    assert called_twice("double") == ["2", "4"]


def test_async_methods_and_other_tools_run_at_once() -> None:
    barrier = threading.Barrier(2)

    def alone() -> str:
        barrier.wait(10)
        return "met"

    assert called_twice("meet") == called_twice("alone", alone) == ["met", "met"]
