"""The process that runs users' rewards, tools and environments: `python -m stoker.rollouts.child PARENT MEMORY`.

It has little of the run's environment, none of its open files, and limits. This keeps accidents away from the trainer;
it is no sandbox: the code can still read files and use the network as this user.

Each call is a coroutine, so a thousand tools that wait cost a thousand coroutines.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import math
import os
import resource
import signal
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from stoker.contract.exits import RunError
from stoker.contract.words import report_traceback
from stoker.rollouts import frames
from stoker.rollouts.calls import THREADS, trace_of
from stoker.rollouts.failures import UserCodeError
from stoker.rollouts.host import Host

# From linux/prctl.h.
_PR_SET_PDEATHSIG = 1
# The stack of a thread counts as memory.
_STACK_BYTES = 2 * 2**20
_OPEN_FILES = 65536


def main() -> None:
    """Serve the run that started this process until it ends."""
    parent, memory = int(sys.argv[1]), float(sys.argv[2])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    faulthandler.register(signal.SIGUSR1)
    # What users print belongs in the log, not among the messages.
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    _limit(None if math.isinf(memory) else int(memory))
    threading.stack_size(_STACK_BYTES)
    try:
        asyncio.run(_serve(requests, os.fdopen(answers, "wb")))
    except BaseException:  # noqa: BLE001 - whatever it is, the log must have it
        report_traceback()
        os._exit(1)
    os._exit(0)  # a function that hangs would keep its thread, and so this process


def _limit(memory: int | None) -> None:
    """Set limits. There is none on CPU time, which a process that lives as long as the run uses up."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    with suppress(OSError):
        # Where memory runs out all the same, this process is killed, not the trainer.
        Path("/proc/self/oom_score_adj").write_text("1000")


async def _serve(requests: int, answers: BinaryIO) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="user"))
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(requests, "rb", 0))

    def answer(message: Mapping[str, Any]) -> None:
        answers.write(frames.packed(message))
        answers.flush()

    async def carry_out(request: Mapping[str, Any]) -> None:
        try:
            answer({"number": request["number"], "result": await host.do(request)})
        except Exception as error:  # noqa: BLE001 - whatever it is, the run must hear of it, or it waits
            failed = error if isinstance(error, UserCodeError) else _unforeseen(request, error)
            told = [failed.function, failed.problem, failed.trace, failed.advice]
            answer({"number": request["number"], "failed": told})

    host = Host()
    try:
        answer({"loaded": host.load(await frames.received(reader))})
    except RunError as error:
        answer({"refused": [int(error.code), error.message]})
        return
    running = set()
    while (request := await frames.received(reader)) is not None:
        task = asyncio.create_task(carry_out(request))
        running.add(task)
        task.add_done_callback(running.discard)


def _unforeseen(request: Mapping[str, Any], error: Exception) -> UserCodeError:
    """Return what is told of an error that is not a function's own, such as a result without a JSON form."""
    name = str(request.get("name") or request["do"])
    return UserCodeError(name, f"gave what cannot be handed over ({type(error).__name__}: {error})", trace_of(error))


if __name__ == "__main__":
    main()
