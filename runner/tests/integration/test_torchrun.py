"""The end of a run on several nodes: none of them complains that another one was quicker."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from stoker.cluster.processes import free_ports

# The worker of node 1 ends last, so that node 0 goes on as soon as node 1 has said that it ended.
WORKER = """
import os, time
time.sleep(float(os.environ["GROUP_RANK"]))
"""
# Node 1 looks late for whether all have ended.
LATE = """
import runpy, time
from torch.distributed.elastic.utils import store

said = store._barrier_nonblocking

def late(*args, **more):
    key = said(*args, **more)
    time.sleep(0.5)
    return key

store._barrier_nonblocking = late
runpy.run_module("stoker.node.torchrun", run_name="__main__")
"""


def test_a_node_that_looks_late_finds_that_all_have_ended(trainer_python: Path, tmp_path: Path) -> None:
    worker, late = tmp_path / "worker.py", tmp_path / "late.py"
    worker.write_text(WORKER)
    late.write_text(LATE)
    (port,) = free_ports(1)
    own = [str(tmp_path / "failures.json"), str(os.getpid()), "--nnodes=2", "--nproc-per-node=1", "--max-restarts=0"]
    met = ["--rdzv-backend=static", "--master-addr=127.0.0.1", f"--master-port={port}", "--rdzv-conf=timeout=60"]
    nodes = [
        subprocess.Popen(
            [trainer_python, *program, *own, f"--node-rank={rank}", *met, str(worker)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank, program in enumerate((["-m", "stoker.node.torchrun"], [str(late)]))
    ]  # fmt: skip
    try:
        said = [node.communicate(timeout=120)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], said
    assert "exit barrier" not in said[1], said[1]
