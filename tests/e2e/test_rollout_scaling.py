"""The samplers of a run are scaled while it trains, by their Job; and samplers that can never serve end it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from builders import replicated_jobs
from e2e.kube import Kube, condition
from e2e.rollouts import BOUND, SMALL, SubmitsSums, SumsRun, wanted
from e2e.trainjobs import Restarts
from stoker.rollouts.replicas import weight

pytestmark = pytest.mark.full  # waits for three samplers to start

# By the run's name the third sampler is the home of one group at least in two steps (`is_home_soon`).
NAME, STEPS, GROUPS = "rl-scale", 60, 2
# Steps before there is a third sampler, and steps with it.
WITH_TWO, WITH_THREE = 5, 12


def scale(kube: Kube, run: SumsRun, count: int) -> None:
    """Change how many samplers there are, and wait until they are."""
    spec = {"spec": {"parallelism": count, "completions": count}}
    kube.kubectl("patch", "job", f"{run.name}-sampler-0", "--type=merge", "--patch", json.dumps(spec))

    def done() -> bool:
        pods = run.samplers()
        return len(pods) == count and all(condition(pod, "Ready") for pod in pods)

    kube.until(f"{run.name}: {count} samplers", done, 600)


def is_home_soon(step: int) -> bool:
    """Return whether the third sampler is the home of a group of any two steps in a row, from one on for some time."""
    names = [f"{NAME}-sampler-0-{index}.{NAME}:8080" for index in range(3)]
    home = [max(names, key=lambda name: weight(group, name)) for group in range(GROUPS * (step + 6))]
    return all(names[2] in home[GROUPS * first : GROUPS * (first + 2)] for first in range(step, step + 5))


@contextmanager
def altered(kube: Kube, name: str, alter: Callable[[Any], None]) -> Iterator[str]:
    """A runtime like trl-grpo-async, with another specification of the samplers' pods."""
    found = kube.get("clustertrainingruntime", "trl-grpo-async") or {}
    made = {**found, "metadata": {"name": name, "labels": found["metadata"]["labels"]}}
    (samplers,) = (job for job in replicated_jobs(made) if job["name"] == "sampler")
    alter(samplers["template"]["spec"]["template"]["spec"])
    kube.apply(made)
    try:
        yield name
    finally:
        kube.delete("clustertrainingruntime", name)


def failure_of_samplers(run: SumsRun, kube: Kube) -> str:
    """Wait until a run fails without a restart, and return why the samplers' Job did."""
    run.wait_failed(seconds=600)
    assert run.restarts() == Restarts(0, 0)
    job = kube.get("job", f"{run.name}-sampler-0") or {}
    failed = next(found for found in job["status"]["conditions"] if found["type"] == "Failed")
    return str(failed["message"])


def test_a_flag_that_vllm_does_not_know_ends_the_run_at_once(
    submit_sums: SubmitsSums, sampler_runtime: None, kube: Kube
) -> None:
    def misspell(pod: Any) -> None:
        pod["containers"][0]["args"].append("--max-model-length=64")

    with altered(kube, "trl-grpo-async-misspelt", misspell) as runtime:
        run = submit_sums({"max_steps": "5"}, name="rl-misspelt", runtime=runtime)
        why = failure_of_samplers(run, kube)
        assert why.endswith("exit code 2 matching FailJob rule at index 3"), why


def test_a_sampler_that_cannot_be_prepared_ends_the_run_at_once(
    submit_sums: SubmitsSums, sampler_runtime: None, kube: Kube
) -> None:
    def misplace(pod: Any) -> None:
        (prepare,) = (one for one in pod["initContainers"] if one["name"] == "prepare")
        prepare["command"] = [*prepare["command"][:-1], "/nowhere"]  # its root is read-only

    with altered(kube, "trl-grpo-async-misplaced", misplace) as runtime:
        run = submit_sums({"max_steps": "5"}, name="rl-misplaced", runtime=runtime)
        why = failure_of_samplers(run, kube)
        assert why.startswith("Container prepare for pod "), why
        assert why.endswith("exit code 78 matching FailJob rule at index 2"), why


def test_samplers_are_scaled_from_two_to_three_and_back(submit_sums: SubmitsSums, kube: Kube) -> None:
    # Groups begin two steps ahead, whatever the trainer waits for.
    run = submit_sums({**SMALL, "max_steps": str(STEPS), "depth": str(BOUND)}, name=NAME)
    run.hold(WITH_TWO)
    run.wait_steps(WITH_TWO, seconds=600)
    scale(kube, run, 3)
    # That its name is unknown is remembered by the cluster's DNS for a while.
    kube.until("the nodes to use the third", lambda: f"{NAME}-sampler-0-2.{NAME}:8080 is ready" in run.log(), 300)
    three = len(run.metrics())
    run.hold(three + WITH_THREE)
    run.wait_steps(three + WITH_THREE)
    scale(kube, run, 2)
    two = len(run.metrics())
    assert two < STEPS - 10, "the run was over before it was scaled back"
    run.release()
    run.wait_complete(seconds=900)
    assert run.restarts() == Restarts(0, 0)
    assert run.flaws(wanted(STEPS)) == []
    names = [f"{NAME}-sampler-0-{index}" for index in range(3)]
    assert run.replicas(0) == {*names}
    # What was written before is trained within the bound.
    assert run.replicas(two + 4) == {*names[:2]}
    ready = [line["samplers/ready"] for line in run.metrics()]
    # One that loads a version late, as where other tests take the processor, is not ready in that step.
    both = [step for step in range(three, two) if ready[step : step + 2] == [3.0, 3.0]]
    assert both, f"the third was never ready for long: {ready}"
    used = both[0]
    assert is_home_soon(used), f"the third is no group's home for long after step {used}: change NAME"
    # As many versions as steps were published when it was ready. The groups of two steps begin within two versions.
    assert run.first_version(names[2]) <= used + 2
    assert max(ready[two + 4 :]) == 2.0
