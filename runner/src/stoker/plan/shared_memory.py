"""Whether /dev/shm is large enough for what a run puts there. Pure."""

from __future__ import annotations

from stoker.plan.facts import Facts

# NCCL talks through segments of some 10 MB for each channel and peer of a node; a container engine's own default of
# 64 MiB ends in "unable to open shared memory" (NCCL user guide, Troubleshooting, Shared memory).
_BYTES_PER_PROCESS = 64 * 2**20
# A data loader's worker hands over two batches at a time (torch, DataLoader.prefetch_factor).
_BYTES_PER_WORKER = 16 * 2**20


def shared_memory_problems(facts: Facts, processes: int, workers: int) -> list[str]:
    """Return a problem if /dev/shm is too small for the processes of a node; empty where nothing needs it.

    Args:
        facts: what the container sees.
        processes: training processes on this node.
        workers: processes that load data, for each training process.
    """
    nccl = processes * _BYTES_PER_PROCESS if facts.accelerator == "nvidia" and processes > 1 else 0
    needed = nccl + processes * workers * _BYTES_PER_WORKER
    if facts.shm_bytes is None or facts.shm_bytes >= needed:
        return []
    users = [f"{processes} processes that share their GPUs' data through it"] if nccl else []
    users += [f"{workers} data loader workers in each process"] if workers else []
    problem = (
        f"/dev/shm has {facts.shm_bytes // 2**20} MiB, but {needed // 2**20} MiB are needed for {' and '.join(users)}: "
        "mount an emptyDir with `medium: Memory` and a larger sizeLimit there (the runtimes of this project do), "
        "within the container's memory limit"
    )
    return [problem]
