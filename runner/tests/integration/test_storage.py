"""A disk that is full or read-only ends a run with its code; once mended, the run goes on from a whole checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from runner.tests.integration.disks import kept_full, kept_read_only, small_disk
from runner.tests.integration.jobs import LocalJob

FLAGS = ("--max_steps", "150", "--save_steps", "20")


@pytest.fixture
def small(job: LocalJob) -> Iterator[Path]:
    with small_disk(job.workspace) as disk:
        yield disk


@pytest.mark.full
@pytest.mark.parametrize(
    ("broken", "says"),
    [
        pytest.param(kept_full, "the disk is full: enlarge the volume", id="full"),
        pytest.param(kept_read_only, "the disk is read-only: mount the volume for writing", id="read-only"),
    ],
)
def test_a_disk_that_takes_nothing_more_ends_the_run_and_costs_no_checkpoint(
    job: LocalJob, small: Path, broken: Callable[[Path], AbstractContextManager[None]], says: str
) -> None:
    process = job.start(*FLAGS)
    job.wait_for(job.sealed, process, every=0.005)
    with broken(small):
        ended = job.end(process)
    assert ended.code == 78, ended.output
    assert f"exit 78: wrong configuration: {says}" in ended.output
    assert "attempt 1" not in ended.output, "a retry would meet the same disk"
    assert not (job.output / "stoker.json").exists()

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
