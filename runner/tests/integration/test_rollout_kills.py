"""The kill matrix of asynchronous GRPO: whatever is lost, each group is trained once, and never too late.

`make kill-matrix` runs every case and writes docs/reference/kill-matrix.md from what it saw.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from runner.tests.integration.disks import kept_full, small_disk
from runner.tests.integration.jobs import leftovers
from runner.tests.integration.kills import listening_runners
from runner.tests.integration.rollout_jobs import STEPS, SUPERVISOR, RolloutJob
from runner.tests.integration.rollout_jobs import VLLM as VLLM_PART
from runner.tests.integration.rollout_jobs import WATCHER as WATCHER_PART
from runner.tests.kill_matrix import LOCAL, cell, recorded
from runner.tests.rollout_kill_matrix import (
    DISK,
    LOCAL_CASES,
    SAMPLER,
    VLLM,
    WATCHER,
    RolloutCase,
    in_two_runs,
)

pytestmark = pytest.mark.full  # two vLLM servers take a minute to start

PARTS = {SAMPLER: SUPERVISOR, VLLM: VLLM_PART, WATCHER: WATCHER_PART}
ON_SIGNAL = [case for case in LOCAL_CASES if case.number is not None]
OF_SAMPLERS = [case for case in ON_SIGNAL if case.hit in PARTS]
# The step of the first hit, and steps in which a sampler writes again after a hit and is seen to.
FIRST_HIT, STEPS_OF_A_HIT = 7, 18


@pytest.fixture
def rollouts(trainer_python: Path, vllm_python: Path, inputs: Path, tmp_path: Path) -> Iterator[RolloutJob]:
    """A TrainJob with samplers, in folders of its own. Fails the test if a process outlives it."""
    yield RolloutJob(trainer_python, vllm_python, inputs, tmp_path)
    assert leftovers(tmp_path) == []


@pytest.mark.matrix
@pytest.mark.parametrize("cases", in_two_runs(OF_SAMPLERS))
def test_samplers_that_are_lost_one_after_another_are_replaced_while_the_nodes_train(
    rollouts: RolloutJob, cases: Sequence[RolloutCase]
) -> None:
    job = rollouts
    job.steps = FIRST_HIT + STEPS_OF_A_HIT * len(cases)
    with ExitStack() as stack:
        records = [stack.enter_context(recorded(case, LOCAL)) for case in cases]
        process = job.start(nodes=2)
        job.wait_for(job.has_begun, process)
        for case in cases:
            _replace(job, process, case)
        ended = job.end(process)
        assert (job.codes(), ended.code) == ((0,), 0), ended.output
        assert job.flaws() == [], ended.output
        assert job.manifest()["steps"] == job.steps
        assert job.versions() == []
        for record in records:
            record.append(cell(0, None))


def _replace(job: RolloutJob, process: subprocess.Popen[bytes], case: RolloutCase) -> None:
    """Take a sampler away, or one of its parts, and wait until its replacement has written what is trained."""
    (sampler,) = case.samplers
    part, name = PARTS[case.hit], job.name_of(sampler)
    lost = job.wait_for(lambda: job.part(sampler, part), process)
    # A container whose first process is killed loses all others.
    whole = case.hit == SAMPLER and case.number is signal.SIGKILL
    _send(case.number, job.processes(sampler) if whole else [lost])
    job.hold.touch()
    job.wait_for(lambda: job.part(sampler, part) not in (lost, None), process)
    job.wait_for(lambda: job.ready(sampler), process)
    done = job.steps_done()
    # So that the run is not over before the fleet looks again.
    job.slow.touch()
    job.hold.unlink()
    job.wait_for(lambda: name in job.replicas(done + 4), process)
    job.slow.unlink()


@pytest.mark.matrix
@pytest.mark.parametrize("case", [case for case in ON_SIGNAL if case.nodes], ids=str)
def test_a_node_that_is_lost_costs_the_steps_since_the_checkpoint_alone(
    rollouts: RolloutJob, case: RolloutCase
) -> None:
    job = rollouts
    with recorded(case, LOCAL) as record:
        process = job.start(nodes=2)
        runners = job.wait_for(lambda: listening_runners(job, 2), process)
        job.wait_for(job.has_begun, process)
        killed = case.number is signal.SIGKILL
        for node in case.nodes:
            _send(case.number, job.of_node(node) if killed else [runners[node]])
        for sampler in case.samplers:
            _send(case.number, job.processes(sampler) if killed else [job.part(sampler, SUPERVISOR)])
        ended = job.end(process)
        assert (job.codes(), ended.code) == ((case.code, 0), 0), ended.output
        assert job.flaws() == [], ended.output
        manifest = job.manifest()
        assert (manifest["steps"], manifest["attempt"]) == (STEPS, 1)
        assert manifest["resumed_from"] is not None, ended.output
        assert job.versions() == []
        record.append(cell(case.code, manifest["resumed_from"]))


def test_a_disk_that_takes_no_version_ends_the_run_and_costs_no_checkpoint(rollouts: RolloutJob) -> None:
    job, case = rollouts, RolloutCase(DISK, None)
    job.steps = 2 * STEPS  # the last versions may fail: no sample needs them any more
    with recorded(case, LOCAL) as record, small_disk(job.adapters) as disk:
        process = job.start(nodes=2)
        job.wait_for(job.has_begun, process)
        with kept_full(disk):  # a version that nobody needs any more leaves no room for a new one
            ended = job.end(process)
        assert (job.codes(), ended.code) == ((case.code,), case.code), ended.output
        assert f"{disk} is full (No space left on device): enlarge it" in ended.output
        assert job.versions() == []
        assert not (job.output / "stoker.json").exists()
        ended = job.run(nodes=2)
        assert ended.code == 0, ended.output
        assert job.flaws() == [], ended.output
        assert job.manifest()["resumed_from"] is not None
        assert job.versions() == []
        record.append(f"{case.code}; once there is room, 0 from a checkpoint")


def _send(number: signal.Signals | None, pids: Iterable[int | None]) -> None:
    assert number is not None
    for pid in pids:
        assert pid is not None
        with suppress(ProcessLookupError):
            os.kill(pid, number)
