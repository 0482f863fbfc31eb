"""Runs several things beside each other, such that a stop is quick."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


def in_background(work: Callable[[], Result]) -> asyncio.Future[Result]:
    """Run what blocks in a thread; return what will hold its result in the running loop. No stop waits for it."""
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - who waits gets it
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, daemon=True).start()
    return asyncio.wrap_future(future)


async def together(coroutines: Sequence[Any]) -> list[Any]:
    """Await all; at the first failure cancel the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
