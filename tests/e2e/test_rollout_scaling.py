"""The samplers of a run are scaled while it trains, by their Job; and samplers that can never serve end it."""

from __future__ import annotations

import json
from collections.abc import Iterator

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


@pytest.fixture
def misspelt(kube: Kube, sampler_runtime: None) -> Iterator[str]:
    """A runtime whose samplers have a flag that vLLM does not know."""
    found = kube.get("clustertrainingruntime", "trl-grpo-async") or {}
    name = "trl-grpo-async-misspelt"
    made = {**found, "metadata": {"name": name, "labels": found["metadata"]["labels"]}}
    (samplers,) = (job for job in replicated_jobs(made) if job["name"] == "sampler")
    (container,) = samplers["template"]["spec"]["template"]["spec"]["containers"]
    container["args"].append("--max-model-length=64")
    kube.apply(made)
    yield name
    kube.delete("clustertrainingruntime", name)


def test_a_flag_that_vllm_does_not_know_ends_the_run_at_once(
    submit_sums: SubmitsSums, misspelt: str, kube: Kube
) -> None:
    run = submit_sums({"max_steps": "5"}, name="rl-misspelt", runtime=misspelt)
    run.wait_failed(seconds=600)
    assert run.restarts() == Restarts(0, 0)
    job = kube.get("job", f"{run.name}-sampler-0") or {}
    failed = next(found for found in job["status"]["conditions"] if found["type"] == "Failed")
    assert failed["message"].endswith("exit code 2 matching FailJob rule at index 3"), failed


def test_a_rank_that_vllm_does_not_serve_ends_the_run_at_once(submit_sums: SubmitsSums, kube: Kube) -> None:
    # The nodes can train it. A sampler finds out before its vLLM starts, in `prepare`, which ends with 78.
    run = submit_sums({"max_steps": "5", "lora_r": "1024"}, name="rl-rank")
    run.wait_failed(seconds=600)
    assert run.restarts() == Restarts(0, 0)
    job = kube.get("job", f"{run.name}-sampler-0") or {}
    failed = next(found for found in job["status"]["conditions"] if found["type"] == "Failed")
    assert failed["message"].startswith("Container prepare for pod "), failed
    assert failed["message"].endswith("exit code 78 matching FailJob rule at index 2"), failed


def test_samplers_are_scaled_from_two_to_three_and_back(submit_sums: SubmitsSums, kube: Kube) -> None:
    # Groups begin two steps ahead, whatever the trainer waits for.
    run = submit_sums({**SMALL, "max_steps": str(STEPS), "depth": str(BOUND)}, name=NAME)
    run.hold(WITH_TWO)
    run.wait_steps(WITH_TWO, seconds=600)
    scale(kube, run, 3)
    # That its name is unknown is remembered by the cluster's DNS for a while.
    kube.until("the nodes to use the third", lambda: f"{NAME}-sampler-0-2.{NAME}:8080 is ready" in run.log(), 300)
    three = len(run.metrics())
    assert is_home_soon(three), f"the third is no group's home for long after step {three}: change NAME"
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
    # As many versions as steps were published when it was ready. The groups of two steps begin within two versions.
    assert run.first_version(names[2]) <= three + 2
    # What was written before is trained within the bound.
    assert run.replicas(two + 4) == {*names[:2]}
    ready = [line["samplers/ready"] for line in run.metrics()]
    assert max(ready[three : two + 1]) == 3.0
    assert ready[-1] == 2.0
