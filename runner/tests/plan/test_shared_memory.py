"""A /dev/shm that is too small is refused where something needs it, and nowhere else."""

from __future__ import annotations

import pytest
from runner.tests.samples import POD, resolve

from stoker.contract.exits import RunError
from stoker.plan.facts import Facts

GPUS = ("nvidia0", "nvidia1")


def problems(*args: str, devices: tuple[str, ...] = (), shm_mib: int | None = 64, processes: int = 1) -> str:
    """Return what the plan of a pod is refused for; empty if it is not."""
    shm = None if shm_mib is None else shm_mib * 2**20
    told = {**POD, "PET_NPROC_PER_NODE": str(processes)}
    try:
        resolve(Facts(env=told, devices=devices, cpus=8, shm_bytes=shm), args)
    except RunError as error:
        return f"{int(error.code)} {error.message}"
    return ""


def test_several_processes_with_gpus_need_more_than_a_container_engines_default() -> None:
    refused = problems(devices=GPUS, processes=2)
    assert refused.startswith("78 ")
    assert "/dev/shm has 64 MiB but needs 128 MiB (2 GPU processes exchange data there)" in refused
    assert "medium: Memory" in refused
    assert problems(devices=GPUS, processes=2, shm_mib=128) == ""


def test_data_loader_workers_need_it_too() -> None:
    assert "needs 96 MiB (each process has 6 data loader workers)" in problems("--dataloader_num_workers", "6")


@pytest.mark.parametrize(("devices", "processes"), [(GPUS[:1], 1), ((), 4), ((), 1)])
def test_nothing_else_needs_it(devices: tuple[str, ...], processes: int) -> None:
    assert problems(devices=devices, processes=processes, shm_mib=1) == ""


def test_a_size_that_nobody_knows_is_no_reason_to_refuse() -> None:
    assert problems(devices=GPUS, processes=2, shm_mib=None) == ""
