"""A thread with an asyncio loop, in which groups are written, and which ends at once when it is told to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from stoker.rollouts.records import Written
from stoker.rollouts.schedule import GroupStart

# Seconds that cancelled coroutines have to end; then the loop ends without them.
_GRACE = 0.6
# Seconds that a stop waits for the thread. One that a coroutine blocks ends with the process.
_LEAVE = 0.9

Write = Callable[[GroupStart], Coroutine[Any, Any, Written]]
# Hears what became of a group; without one, what ended the thread.
Ended = Callable[[GroupStart | None, Written | BaseException], None]


class WriterThread:
    """Runs one coroutine per group."""

    def __init__(self, write: Write, ended: Ended) -> None:
        """Prepare; nothing runs before `start`.

        Args:
            write: writes one group.
            ended: called in the thread when a group is written or its coroutine ended otherwise.
        """
        self._write = write
        self._ended = ended
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[GroupStart, asyncio.Task[Written]] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def launch(self, starts: Sequence[GroupStart]) -> None:
        """Begin to write groups. Any thread may call this."""
        self._loop.call_soon_threadsafe(self._launch, starts)

    def abandon(self, starts: Sequence[GroupStart]) -> None:
        """Cancel groups; `ended` hears of each. Any thread may call this."""
        self._loop.call_soon_threadsafe(self._cancel, starts)

    def stop(self) -> None:
        """Cancel everything and end the thread, within a second. `ended` hears nothing any more."""
        if self._stopping:
            return
        self._stopping = True
        if not self._thread.is_alive():
            self._loop.close()
            return
        # The loop is closed if the thread has ended meanwhile.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._leave()))
        self._thread.join(_LEAVE)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        except BaseException as error:  # noqa: BLE001 - the trainer's thread raises it
            self._ended(None, error)
        finally:
            # Coroutines that did not end in time would be reported as lost.
            self._loop.set_exception_handler(lambda loop, context: None)
            self._loop.close()

    def _launch(self, starts: Sequence[GroupStart]) -> None:
        for start in starts:
            task = self._loop.create_task(self._write(start))
            self._tasks[start] = task
            task.add_done_callback(partial(self._done, start))

    def _cancel(self, starts: Sequence[GroupStart]) -> None:
        for start in starts:
            if start in self._tasks:
                self._tasks[start].cancel()

    def _done(self, start: GroupStart, task: asyncio.Task[Written]) -> None:
        del self._tasks[start]
        if self._stopping:
            return
        if task.cancelled():
            self._ended(start, asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            self._ended(start, error)
        else:
            self._ended(start, task.result())

    async def _leave(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_GRACE)
        self._loop.stop()
