"""What a framework's training module gets from the runner, returns to it, and shares with other ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from stoker.plan.plan import Plan
from stoker.rank.guard import achieved_world_size
from stoker.rank.pulse import Pulse

if TYPE_CHECKING:
    import torch


class Guard(Protocol):
    """Raises if this process must not train."""

    def __call__(self, device: torch.device | None = None) -> None:
        """Check the process.

        Args:
            device: the device that the trainer computes on; None skips the check of the trainer's choice.
        """


class StopRequested(BaseException):
    """All ranks leave the training loop because of a stop request.

    Args:
        step: the last completed step.
        kept: what happened to the work, for example `checkpoint saved`.
    """

    def __init__(self, step: int, kept: str = "checkpoint saved") -> None:
        super().__init__(f"stopped at step {step}, {kept}")
        self.step = step


@dataclass(slots=True)
class Outcome:
    """The result of the training loop.

    Attributes:
        step: steps completed.
        total: steps requested.
        finished: True if the loop completed all steps.
        metrics: the last logged numbers.
    """

    step: int = 0
    total: int = 0
    finished: bool = False
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    """One process's part of a run.

    Attributes:
        plan: the plan of the run.
        checkpoint: the folder to resume from, the same on all ranks; None to start at step 0.
        guard: call it once the process group exists, with the trainer's device.
        stop_flag: if this file exists on any node, all ranks stop.
        pulse: beat it regularly from the first step on; a rank without beats counts as hung.
        on_training: call it right before the first step.
    """

    plan: Plan
    checkpoint: Path | None
    guard: Guard
    stop_flag: Path
    pulse: Pulse
    on_training: Callable[[], None]


def any_rank(flag: bool, device: torch.device) -> bool:
    """Return whether the flag is set on any rank; every rank must call this at the same point."""
    if achieved_world_size() == 1:
        return flag
    import torch
    import torch.distributed as dist

    tensor = torch.tensor([int(flag)], device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return bool(tensor.item())


def barrier() -> None:
    """Wait until every rank is here."""
    if achieved_world_size() > 1:
        import torch.distributed as dist

        dist.barrier()
