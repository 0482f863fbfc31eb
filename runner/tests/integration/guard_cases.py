"""Puts a group of two through the guard's refusals: `torchrun --nproc-per-node=2 guard_cases.py FOLDER`.

Rank 0 prints a JSON object: case → exit code and message; null where the guard let it pass.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist

from stoker.contract.exits import RunError
from stoker.rank import guard
from stoker.rank.guard import Identity


def main(folder: Path) -> None:
    """Run every case on both ranks."""
    guard._NONCE_SECONDS = 1.0  # two folders of one machine will not become the same
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    own = folder / f"rank-{rank}"
    cases: dict[str, tuple[int, Identity, Path | None]] = {
        "same": (2, Identity("plan", "1.0"), folder / "shared"),
        "no folder": (2, Identity("plan", "1.0"), None),
        "larger world": (4, Identity("plan", "1.0"), folder / "shared"),
        "other plan": (2, Identity(f"plan-{rank}", "1.0"), folder / "shared"),
        "other image": (2, Identity("plan", f"1.{rank}"), folder / "shared"),
        "own folders": (2, Identity("plan", "1.0"), own),
    }
    results: dict[str, list[object] | None] = {}
    for name, (expected, identity, shared) in cases.items():
        try:
            guard.guard(expected, identity, shared)
            results[name] = None
        except RunError as error:
            results[name] = [int(error.code), error.message]
        dist.barrier()
    if rank == 0:
        print(json.dumps(results), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
