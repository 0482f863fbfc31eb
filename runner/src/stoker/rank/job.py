"""What every framework's module in this package is given, tells the runner, and needs of the process group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.plan.plan import Plan
from stoker.rank.guard import achieved_world_size
from stoker.rank.pulse import Pulse

if TYPE_CHECKING:
    import torch


class StopRequested(BaseException):
    """All ranks leave the training loop because a stop was asked for.

    Args:
        step: the last step done.
        kept: what became of the work, e.g. `checkpoint saved`.
    """

    def __init__(self, step: int, kept: str = "checkpoint saved") -> None:
        super().__init__(f"stopped at step {step}, {kept}")
        self.step = step


@dataclass(slots=True)
class Outcome:
    """What the training loop came to.

    Attributes:
        step: steps done.
        total: steps asked for.
        finished: True once the loop ended with all steps done.
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
        plan: what was planned.
        checkpoint: the folder to resume from, the same on all ranks; None to start at step 0.
        guard: call once the process group exists; raises if this process must not train.
        stop_flag: file whose existence on any node stops all ranks.
        pulse: beat it at every sign of life from the first step on: a rank that falls silent counts as hung.
        on_training: call when the first step is about to start.
    """

    plan: Plan
    checkpoint: Path | None
    guard: Callable[[], None]
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
