"""The runner never counts on more time to stop than its pods have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from builders import RUNTIME, job_of_pod, kept, patches, trainjob, variables
from stoker.cluster.grace import patched_grace, told_of_grace
from stoker.cluster.validate import Validation, validate_one
from stoker.contract.exits import ExitCode

GRACE = "STOKER_GRACE_PERIOD_SECONDS"


def patching(seconds: Any, told: str = "", **trainer: Any) -> dict[str, Any]:
    """Return a TrainJob that gives its pods so many seconds, and perhaps tells the runner another number."""
    spec = patches(job_of_pod("node", terminationGracePeriodSeconds=seconds))
    more: dict[str, Any] = {"env": variables({GRACE: told})} if told else {}
    return trainjob(spec=spec, **more, **trainer)


def of(job: Mapping[str, Any]) -> Validation:
    return validate_one(dict(job), kept(RUNTIME))


def entry(seconds: int) -> str:
    return f'add {{name: {GRACE}, value: "{seconds}"}} to spec.trainer.env'


def test_a_shorter_one_that_the_runner_does_not_know_is_78() -> None:
    verdict = of(patching(20))
    assert verdict.code is ExitCode.CONFIG
    ((code, text),) = verdict.problems
    assert code is ExitCode.CONFIG
    assert text == (
        "the pods have 20 s to stop (terminationGracePeriodSeconds), but the runner counts on 120, so it may be killed "
        f"while it saves: {entry(20)}"
    )


@pytest.mark.parametrize("job", [patching(20, "21"), trainjob(env=variables({GRACE: "600"}))])
def test_so_is_any_number_above_what_the_pods_have(job: Mapping[str, Any]) -> None:
    assert of(job).code is ExitCode.CONFIG


def test_a_longer_one_is_noted() -> None:
    verdict = of(patching(600))
    assert verdict.problems == ()
    assert [text for text in verdict.notices if "to stop" in text] == [
        f"the runner uses 120 of the 600 s that the pods have to stop: for all of them, {entry(600)}"
    ]


@pytest.mark.parametrize("seconds", [20, 600])
def test_the_variable_answers_both(seconds: int) -> None:
    written = patching(seconds, str(seconds))
    added, said = told_of_grace(patching(seconds, args=["--max_steps", "3"]))
    assert said
    for job in (written, added):
        verdict = of(job)
        assert (verdict.problems, [text for text in verdict.notices if "to stop" in text]) == ((), [])
        assert verdict.plan is not None
        assert verdict.plan.grace_seconds == seconds


@pytest.mark.parametrize(("told", "enough"), [("", 120), ("30", 30)])
def test_pods_without_any_time_need_what_the_runner_counts_on(told: str, enough: int) -> None:
    ((_, text),) = of(patching(0, told)).problems
    assert text.endswith(f": give them {enough} s or more")
    assert of(patching(enough, told)).problems == ()
    assert told_of_grace(patching(0)) == (patching(0), "")


@pytest.mark.parametrize("seconds", [20, 600])
def test_nobody_compares_with_a_number_that_only_the_cluster_knows(seconds: int) -> None:
    job = patching(seconds)
    source = {"configMapKeyRef": {"name": "times", "key": "grace"}}
    job["spec"]["trainer"]["env"] = [{"name": GRACE, "valueFrom": source}]
    verdict = of(job)
    assert verdict.problems == ()
    assert [text for text in verdict.notices if GRACE in text] == [
        f"env {GRACE} comes from the cluster and was not checked"
    ]


@pytest.mark.parametrize(
    "job",
    [
        trainjob(),
        patching(20, "20"),
        patching(20, "600"),
        patching(20, with_trainer=False),
        patching("soon"),
        trainjob(spec=patches(job_of_pod("sampler", terminationGracePeriodSeconds=20))),
        {"spec": {"runtimePatches": [None, {"trainingRuntimeSpec": []}], "trainer": {"env": "?"}}},
        {},
    ],
)
def test_nothing_else_is_added(job: dict[str, Any]) -> None:
    assert told_of_grace(job) == (job, "")


def test_the_last_patch_counts() -> None:
    job = patching(20)
    job["spec"]["runtimePatches"] += patching(30)["spec"]["runtimePatches"]
    assert patched_grace(job) == 30
    verdict = of(job)
    assert entry(30) in verdict.errors
