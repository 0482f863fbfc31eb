"""Rank 0 of two nodes, whose trainer writes a recorded log where NCCL would: argv is the log. Needs torch, but no GPU.

The rank is the runner's own (`stoker.rank.worker`); this module stands for the trainer, which needs another node.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stoker.rank import worker
from stoker.rank.job import Job, Outcome


def train(job: Job) -> Outcome:
    """Write the log as NCCL does when the first collective makes its channels, and train one step."""
    assert os.environ["NCCL_DEBUG"] == "INFO"
    Path(os.environ["NCCL_DEBUG_FILE"]).write_text(Path(sys.argv[1]).read_text(encoding="utf-8"), encoding="utf-8")
    job.on_training()
    return Outcome(step=1, total=1, finished=True)


def main() -> int:
    """Be rank 0 beside the store that node 0's launcher would have."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port), RANK="0", LOCAL_RANK="0")
    vars(worker)["check_device"] = lambda *_: None  # the GPU of the plan is made up
    return worker.main()


if __name__ == "__main__":
    worker.leave(main())
