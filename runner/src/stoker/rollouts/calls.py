"""Calls users' functions: async ones in the event loop, others in threads, each with a clock."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.rollouts.failures import UserCodeError, said_by
from stoker.rollouts.loading import is_async

# Functions that are not async and run at the same time.
THREADS = 512


@dataclass(frozen=True, slots=True)
class Clock:
    """How long functions may take, and when they ran.

    Attributes:
        seconds: from the start of each.
        limit: the same in words.
        ran: when each began and when it ended, by `time.monotonic`. The wait for a thread comes before.
    """

    seconds: float
    limit: str
    ran: list[tuple[float, float]] = field(default_factory=list)


class Calls:
    """Calls functions, no more at a time than there are threads."""

    def __init__(self) -> None:
        self._threads = asyncio.Semaphore(THREADS)

    async def call(
        self, name: str, function: Callable[..., Any], clock: Clock, /, *, told: bool = False, **arguments: Any
    ) -> Any:
        """Call a function and return its result.

        Args:
            name: its name in messages.
            function: the function.
            clock: how long it may take.
            told: raise its exceptions as they are.
            arguments: its arguments.

        Raises:
            UserCodeError: it took longer, or raised.
        """
        if is_async(function):
            return await self._awaited(name, function(**arguments), clock, told)
        async with self._threads:
            thread: list[int] = []
            work = functools.partial(_in_thread, thread, function, arguments)
            future = asyncio.get_running_loop().run_in_executor(None, work)
            result = await _result(name, future, clock, told, lambda: _stack_of(thread))
        # It may have made a coroutine without being one, as a lambda does.
        return await self._awaited(name, result, clock, told) if inspect.isawaitable(result) else result

    async def _awaited(self, name: str, coroutine: Any, clock: Clock, told: bool) -> Any:
        task = asyncio.ensure_future(_guarded(coroutine))
        return await _result(name, task, clock, told, lambda: _trace_of_task(task))


class _EndedError(Exception):
    """What a function raised to end the process, such as SystemExit, which asyncio would let through."""


async def _result(name: str, future: asyncio.Future[Any], clock: Clock, told: bool, stack: Callable[[], str]) -> Any:
    began = time.monotonic()
    done, _ = await asyncio.wait([future], timeout=clock.seconds)
    clock.ran.append((began, time.monotonic()))
    if not done:
        where = stack()
        future.cancel()
        advice = "let it end earlier, or raise the limit if many functions compute at once"
        raise UserCodeError(name, f"took longer than {clock.limit}", where, advice)
    error = future.exception()
    if error is None:
        return future.result()
    raised = error.args[0] if isinstance(error, _EndedError) else error
    if told and isinstance(raised, Exception):
        raise raised
    raise UserCodeError(name, f"raised {said_by(raised)}", trace_of(raised)) from error


async def _guarded(coroutine: Any) -> Any:
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        raise _EndedError(error) from error


def _in_thread(thread: list[int], function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    thread.append(threading.get_ident())
    try:
        return function(**arguments)
    except (SystemExit, KeyboardInterrupt, StopIteration) as error:  # a future cannot hold the last one
        raise _EndedError(error) from error


def trace_of(error: BaseException) -> str:
    """Return a traceback without the frames that called the user's function."""
    first = here = error.__traceback__
    while here is not None:
        if Path(here.tb_frame.f_code.co_filename).parent == Path(__file__).parent:
            first = here.tb_next
        here = here.tb_next
    return "".join(traceback.format_exception(type(error), error, first))


def _stack_of(thread: Sequence[int]) -> str:
    """Return where a thread is, without the frames that started it."""
    frame = sys._current_frames().get(thread[0]) if thread else None
    if frame is None:
        return ""
    stack = traceback.extract_stack(frame)
    ours = [at for at, entry in enumerate(stack) if entry.name == _in_thread.__name__]
    return "".join(traceback.format_list(stack[ours[-1] + 1 :] if ours else stack))


def _trace_of_task(task: asyncio.Task[Any]) -> str:
    """Return where a coroutine waits, with the coroutines that it waits for."""
    lines: list[str] = []
    inner: Any = getattr(task.get_coro(), "cr_await", None)
    while getattr(inner, "cr_frame", None) is not None:
        lines += traceback.format_stack(inner.cr_frame, limit=1)
        inner = inner.cr_await
    return "".join(lines)
