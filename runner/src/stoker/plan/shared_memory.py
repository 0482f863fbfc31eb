"""Whether /dev/shm is large enough for what a run puts there. Pure."""

from __future__ import annotations

from stoker.plan.facts import Facts

# NCCL uses segments of about 10 MB for each channel and peer of a node. With a container engine's default of 64 MiB it
# fails with "unable to open shared memory" (NCCL user guide, Troubleshooting, Shared memory).
_BYTES_PER_PROCESS = 64 * 2**20
# A data loader's worker holds two batches there (torch, DataLoader.prefetch_factor).
_BYTES_PER_WORKER = 16 * 2**20


def shared_memory_problems(facts: Facts, processes: int, workers: int) -> list[str]:
    """Return a problem if /dev/shm is too small for the processes of a node.

    Args:
        facts: the facts of the container.
        processes: training processes on this node.
        workers: data loading processes per training process.
    """
    nccl = _of_nccl(facts.accelerator, processes)
    needed = shared_memory_needed(facts.accelerator, processes, workers)
    if facts.shm_bytes is None or facts.shm_bytes >= needed:
        return []
    users = [f"{processes} GPU processes exchange data there"] if nccl else []
    users += [f"each process has {workers} data loader workers"] if workers else []
    problem = (
        f"/dev/shm has {facts.shm_bytes // 2**20} MiB but needs {needed // 2**20} MiB ({', '.join(users)}): "
        "mount an emptyDir with `medium: Memory` and a larger sizeLimit there, within the container's memory limit "
        "(Stoker's runtimes do)"
    )
    return [problem]


def shared_memory_needed(accelerator: str, processes: int, workers: int) -> int:
    """Return how many bytes of /dev/shm the processes of a node need.

    Args:
        accelerator: the accelerator profile.
        processes: training processes on this node.
        workers: data loading processes per training process.
    """
    return _of_nccl(accelerator, processes) + processes * workers * _BYTES_PER_WORKER


def _of_nccl(accelerator: str, processes: int) -> int:
    return processes * _BYTES_PER_PROCESS if accelerator == "nvidia" and processes > 1 else 0
