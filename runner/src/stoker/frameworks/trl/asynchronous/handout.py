"""What rank 0 hands to the other ranks, and how all of them wait for it together.

Only training processes import this module, because it imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from stoker.contract.exits import ExitCode, RunError
from stoker.frameworks.command_line import FLAG_NAMES
from stoker.rank.endings import ending_of

T = TypeVar("T")
# Says on each rank what it waits for; returns True if this rank must stop.
Attend = Callable[[str], bool]
# Given to what rank 0 does: to be called about once a second with what it waits for.
Waiting = Callable[[str], None]

# Rank 0 ended with an error that it raised itself, or failed in some other way.
_WAITING, _DONE, _ENDED, _FAILED = "waiting", "done", "ended", "failed"


class StoppedWaitingError(BaseException):
    """Some rank was told to stop while all ranks waited."""


class Ranks:
    """All ranks of the run, over a group of their own: gloo waits without a device, and has its own order.

    Every rank must call each method at the same point.
    """

    def __init__(self) -> None:
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.size = dist.get_world_size() if several else 1
        self.rank = dist.get_rank() if several else 0
        self._group = dist.new_group(backend="gloo") if several else None

    def share(
        self, produce: Callable[[Waiting], T], attend: Attend, ended: Callable[[RunError], None] = lambda error: None
    ) -> T:
        """Let rank 0 do something that may take long, and return its result on every rank.

        Args:
            produce: what rank 0 does.
            attend: called on every rank while it lasts.
            ended: called on every rank with the `RunError` of rank 0, before that is raised. All ranks are at the same
                point then, which nobody knows after any other error.

        Raises:
            StoppedWaitingError: some rank must stop.
            RunError: rank 0 failed; every rank ends with the same code.
        """

        def waiting(reason: str) -> None:
            self._tell(_WAITING, reason)
            self._stop_together(attend(reason))

        if self.rank:
            return self._follow(attend, ended)  # type: ignore[no-any-return]
        try:
            found = produce(waiting)
        except StoppedWaitingError:
            raise
        except RunError as error:
            self._tell(_ENDED, (int(error.code), error.message))
            ended(error)
            raise
        except BaseException as error:
            verdict = ending_of(error, FLAG_NAMES)
            self._tell(_FAILED, (int(verdict.code), f"rank 0 failed: {verdict.message}"))
            raise
        self._tell(_DONE, found)
        return found

    def gather(self, found: T) -> list[T]:
        """Return what each rank has, by rank, on every rank."""
        if self._group is None:
            return [found]
        everybodys: list[Any] = [None] * self.size
        dist.all_gather_object(everybodys, found, group=self._group)
        return everybodys

    def _follow(self, attend: Attend, ended: Callable[[RunError], None]) -> Any:
        while True:
            kind, value = self._hear()
            if kind == _WAITING:
                self._stop_together(attend(value))
            elif kind in (_ENDED, _FAILED):
                error = RunError(ExitCode(value[0]), value[1])
                if kind == _ENDED:
                    ended(error)
                raise error
            else:
                return value

    def _stop_together(self, stops: bool) -> None:
        if self._group is not None:
            flag = torch.tensor([int(stops)])
            dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._group)
            stops = bool(flag.item())
        if stops:
            raise StoppedWaitingError

    def _tell(self, kind: str, value: Any) -> None:
        if self._group is not None:
            dist.broadcast_object_list([(kind, value)], src=0, group=self._group)

    def _hear(self) -> tuple[str, Any]:
        heard: list[Any] = [None]
        dist.broadcast_object_list(heard, src=0, group=self._group)
        return heard[0]  # type: ignore[no-any-return]
