"""The samplers of a run are scaled while it trains, by their Job; and samplers that can never serve end it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from builders import replicated_jobs
from e2e.kube import Kube, condition
from e2e.rollouts import SMALL, SubmitsSums, SumsRun, wanted
from e2e.trainjobs import Restarts

pytestmark = pytest.mark.full  # waits for three samplers to start

NAME, STEPS = "rl-scaled", 60


def scale(kube: Kube, run: SumsRun, count: int) -> None:
    """Change how many samplers there are, and wait until they are."""
    spec = {"spec": {"parallelism": count, "completions": count}}
    kube.kubectl("patch", "job", f"{run.name}-sampler-0", "--type=merge", "--patch", json.dumps(spec))

    def done() -> bool:
        pods = run.samplers()
        return len(pods) == count and all(condition(pod, "Ready") for pod in pods)

    kube.until(f"{run.name}: {count} samplers", done, 600)


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


def test_samplers_are_scaled_from_two_to_three_and_back(submit_sums: SubmitsSums, kube: Kube) -> None:
    run = submit_sums({**SMALL, "max_steps": str(STEPS)}, name=NAME)
    run.wait_steps(5, seconds=600)
    run.hold()
    scale(kube, run, 3)
    # That its name is unknown is remembered by the cluster's DNS for a while.
    kube.until("the nodes to use the third", lambda: f"{NAME}-sampler-0-2.{NAME}:8080 is ready" in run.log(), 120)
    three = len(run.metrics())
    run.release()
    # Each of the three has a third of the groups: that one had none of so many would be a wonder.
    run.wait_steps(three + 12)
    run.hold()
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
    assert max(ready[three : two + 1]) == 3.0
    assert ready[-1] == 2.0
