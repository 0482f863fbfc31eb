"""The world-size guard: runs when training starts in every process, however it was started."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from stoker.contract.exits import ExitCode, RunError

# Shared filesystems may show a new file late.
_NONCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Identity:
    """What all ranks of a run must share.

    Attributes:
        plan_hash: digest of the plan.
        image_version: tag of the image.
    """

    plan_hash: str
    image_version: str


def achieved_world_size() -> int:
    """Return the number of processes in this process's group; 1 without a group."""
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def guard(expected: int, identity: Identity, shared: Path | None) -> None:
    """Check that this process trains in the requested world.

    Args:
        expected: nodes times processes per node.
        identity: this rank's plan and image.
        shared: the run's folder in the workspace, to check that all ranks share it; None to skip that check.

    Raises:
        RunError: the group has another size, the ranks differ, or the workspace is not shared (78).
    """
    achieved = achieved_world_size()
    expect_world(achieved, expected)
    if achieved == 1:
        return
    _same_everywhere(identity)
    if shared is not None:
        _same_workspace(shared)


def expect_world(achieved: int, expected: int) -> None:
    """Refuse a world of another size than was requested.

    Raises:
        RunError: the two sizes differ (78).
    """
    if achieved != expected:
        raise RunError(
            ExitCode.CONFIG,
            f"the world size is {achieved}, but {expected} was requested: this process would train "
            f"{'alone' if achieved == 1 else 'in another group'}. Start the trainer with `stoker run` or "
            "`torchrun -m`, not with a plain `python`",
        )


def _same_everywhere(identity: Identity) -> None:
    import torch.distributed as dist

    ranks: list[Identity | None] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, identity)
    for rank, other in enumerate(ranks):
        if other == identity or other is None:
            continue
        if other.image_version != identity.image_version:
            raise RunError(
                ExitCode.CONFIG,
                f"rank {rank} runs image {other.image_version}, rank {dist.get_rank()} runs {identity.image_version}: "
                "use one image, by a fixed tag or by digest",
            )
        raise RunError(
            ExitCode.CONFIG,
            f"ranks {rank} and {dist.get_rank()} have different plans ({other.plan_hash}, {identity.plan_hash}): "
            "give all pods of the run the same args and env; `stoker plan` in each shows the difference",
        )


def _same_workspace(shared: Path) -> None:
    import torch.distributed as dist

    word = [uuid.uuid4().hex]
    nonce = shared / "nonce"
    if dist.get_rank() == 0:
        shared.mkdir(parents=True, exist_ok=True)
        nonce.write_text(word[0])
    dist.broadcast_object_list(word, src=0)
    seen = _reads(nonce, word[0])
    answers: list[bool] = [False] * dist.get_world_size()
    dist.all_gather_object(answers, seen)
    blind = [str(rank) for rank, answer in enumerate(answers) if not answer]
    if blind:
        raise RunError(
            ExitCode.CONFIG,
            f"the workspace is not shared: rank {', '.join(blind)} does not see the file of rank 0 in {shared}. "
            "Mount one ReadWriteMany volume as the workspace of all pods",
        )


def _reads(path: Path, content: str) -> bool:
    deadline = time.monotonic() + _NONCE_SECONDS
    while True:
        try:
            # Listing makes network filesystems drop a cached "not found".
            list(path.parent.iterdir())
            if path.read_text() == content:
                return True
        except OSError:
            pass
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
