"""The retry rule for a user's mistakes on a real cluster: they fail at once. Who is tried again: see test_kills.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from e2e.kube import Kube
from e2e.trainjobs import LORA_SFT, Restarts, Run, trainjob

# name → the argument that is wrong, the exit code, and what the message says of the fix
MISTAKES = {
    "unknown-flag": ("--learning_rte=1", 64, "did you mean --learning_rate?"),
    "model-missing": ("--model_name_or_path=/inputs/nowhere", 66, "--model_name_or_path"),
    "data-missing": ("--dataset_name=/inputs/nothing", 66, "--dataset_name"),
}


@pytest.fixture(scope="module")
def runs(submit_together: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Run]]) -> Mapping[str, Run]:
    """One TrainJob for each mistake."""
    return submit_together([trainjob(name, [*LORA_SFT, wrong]) for name, (wrong, _, _) in MISTAKES.items()])


@pytest.mark.parametrize("name", MISTAKES)
def test_a_users_mistake_fails_the_job_once_and_says_the_fix(runs: Mapping[str, Run], kube: Kube, name: str) -> None:
    _, code, fix = MISTAKES[name]
    run = runs[name]
    run.wait_failed()
    assert run.restarts() == Restarts(0, 0)
    endings = run.endings()
    assert {ended for ended, _ in endings} == {code}
    assert fix in endings[0][1]
    (job,) = kube.items("jobs", f"jobset.sigs.k8s.io/jobset-name={name}")
    failed = next(c for c in job["status"]["conditions"] if c["type"] == "Failed")
    assert failed["reason"] == "PodFailurePolicy"
    assert failed["message"].endswith("rule at index 2")
