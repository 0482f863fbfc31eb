"""A disk that is full or read-only ends a run with its code; once mended, the run goes on from a whole checkpoint."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runner.tests.integration.disks import fill, make_room, small_disk
from runner.tests.integration.jobs import LocalJob

FLAGS = ("--max_steps", "150", "--save_steps", "20")


@pytest.fixture
def small(job: LocalJob) -> Iterator[Path]:
    with small_disk(job.workspace) as disk:
        yield disk


def remount(disk: Path, how: str) -> None:
    """Make a disk read-only or writable."""
    subprocess.run(["mount", "-o", f"remount,{how}", disk], check=True)


@pytest.mark.full
@pytest.mark.parametrize(
    ("break_it", "mend_it", "says"),
    [
        pytest.param(fill, make_room, "the disk is full: enlarge the volume", id="full"),
        pytest.param(
            lambda disk: remount(disk, "ro"),
            lambda disk: remount(disk, "rw"),
            "the disk is read-only: mount the volume for writing",
            id="read-only",
        ),
    ],
)
def test_a_disk_that_takes_nothing_more_ends_the_run_and_costs_no_checkpoint(
    job: LocalJob, small: Path, break_it: Callable[[Path], None], mend_it: Callable[[Path], None], says: str
) -> None:
    process = job.start(*FLAGS)
    job.wait_for(job.sealed, process, every=0.005)
    break_it(small)
    ended = job.end(process)
    assert ended.code == 78, ended.output
    assert f"exit 78: wrong configuration: {says}" in ended.output
    assert "attempt 1" not in ended.output, "a retry would meet the same disk"
    assert not (job.output / "stoker.json").exists()

    mend_it(small)
    (newest, *_) = job.sealed()
    ended = job.run(*FLAGS)
    assert ended.code == 0, ended.output
    manifest = job.manifest()
    assert (manifest["steps"], manifest["resumed_from"]) == (150, f"checkpoint-{newest}")


@pytest.mark.full
def test_a_checkpoint_whose_weights_are_damaged_is_set_aside_for_the_one_before(job: LocalJob) -> None:
    ended = job.run("--max_steps", "10", "--save_steps", "5")
    assert ended.code == 0, ended.output
    weights = job.output / "checkpoint-10" / "adapter_model.safetensors"
    # As large as before: only a look inside tells.
    weights.write_bytes(bytes(weights.stat().st_size))
    ended = job.run("--max_steps", "15", "--save_steps", "5")
    assert ended.code == 0, ended.output
    assert "checkpoint-10 set aside as set-aside-checkpoint-10-1: adapter_model.safetensors is damaged" in ended.output
    assert (job.manifest()["steps"], job.manifest()["resumed_from"]) == (15, "checkpoint-5")
