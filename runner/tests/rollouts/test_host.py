"""How the process of users' code calls the tools of an answer: in which order, which of them at once, how long."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from stoker.rollouts.failures import UserCodeError
from stoker.rollouts.host import Host


class Room:
    """An environment that takes a while to change."""

    def reset(self, **row: Any) -> None:
        """Begin an episode."""
        self.value, self.inside = 1, 0

    def double(self) -> int:
        """Double the value."""
        before = self.value
        time.sleep(0.3)
        self.value = 2 * before
        return self.value

    async def meet(self) -> str:
        """Wait for another call."""
        self.inside += 1
        while self.inside < 2:
            await asyncio.sleep(0.01)
        return "met"


def called_twice(name: str, *tools: Callable[..., Any], seconds: float = 10, threads: int = 4) -> list[dict[str, Any]]:
    """Return the answers to two calls at once in one episode, with a `Room` and other tools."""
    limited = {"seconds": seconds, "limit": "the limit", "episode": 0}

    async def twice() -> list[dict[str, Any]]:
        host = Host()
        host._tools, host._factories, host._idle = [*tools], {"": Room}, {"": []}
        host._calls._threads = asyncio.Semaphore(threads)
        await host.do({"do": "open", "name": "", "columns": {}, **limited})
        call = {"do": "tool", "name": name, "arguments": {}, **limited}
        return [*await asyncio.gather(host.do(call), host.do(call))]

    return asyncio.run(twice())


def contents(answers: list[dict[str, Any]]) -> list[str]:
    return [answer["content"] for answer in answers]


def test_methods_of_an_environment_that_are_not_async_follow_each_other() -> None:
    assert contents(called_twice("double")) == ["2", "4"]


def test_async_methods_and_other_tools_run_at_once() -> None:
    barrier = threading.Barrier(2)

    def alone() -> str:
        barrier.wait(120)
        return "met"

    assert contents(called_twice("meet")) == contents(called_twice("alone", alone)) == ["met", "met"]


def test_the_time_of_a_call_begins_when_it_has_a_thread() -> None:
    def alone() -> None:
        time.sleep(0.3)

    first, second = (answer["ran"] for answer in called_twice("alone", alone, threads=1))
    assert second[0][0] >= first[0][1]


def test_methods_that_follow_each_other_share_the_time_that_is_left() -> None:
    with pytest.raises(UserCodeError, match="took longer than the limit"):
        called_twice("double", seconds=0.5)
