"""A run's state and reason are what the objects of Kubernetes say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner.tests.runs import objects
from runner.tests.runs.objects import ended, jobset, pod, progress, terminated, trainjob, unschedulable, waiting

from stoker.runs.run import QUEUE, State, run_of, runs_of

Object = dict[str, Any]


def with_metadata(thing: Object, **more: Any) -> Object:
    return {**thing, "metadata": {**thing["metadata"], **more}}


def evicted(**more: Any) -> Object:
    gone = pod(phase="Failed", **more)
    return {**gone, "status": {**gone["status"], "reason": "Evicted", "message": "The node was low on memory."}}


STATES: dict[str, tuple[Object, Object | None, list[Object], State, str]] = {
    "new": (trainjob(), None, [], State.PENDING, ""),
    "fetching": (
        trainjob(),
        jobset(),
        [pod("model-initializer"), terminated(0, role="dataset-initializer")],
        State.PREPARING,
        "",
    ),
    "training": (trainjob(), jobset(), [pod(), pod(index=1)], State.RUNNING, ""),
    "its end has not reached the TrainJob": (
        trainjob(),
        jobset(restarts=1),
        [terminated(0), terminated(0, index=1), pod("sampler")],
        State.RUNNING,
        "its pods have ended",
    ),
    "a peer is missing": (
        trainjob(),
        jobset(),
        [pod(), unschedulable("0/1 nodes are available: 1 Insufficient cpu.", index=1)],
        State.RUNNING,
        "Unschedulable",
    ),
    "no node": (trainjob(), jobset(), [unschedulable("0/1 nodes are available.")], State.PENDING, "Unschedulable"),
    "no image": (trainjob(), jobset(), [waiting("ImagePullBackOff")], State.PENDING, "ImagePullBackOff"),
    "the container is made": (trainjob(), jobset(), [waiting("ContainerCreating")], State.PENDING, ""),
    "a sampler lacks its image": (
        trainjob(),
        jobset(),
        [pod(), waiting("ErrImagePull", role="sampler")],
        State.RUNNING,
        "sampler: ErrImagePull",
    ),
    "an evicted initializer was replaced": (
        trainjob(),
        jobset(),
        [evicted(role="model-initializer"), pod("model-initializer")],
        State.PREPARING,
        "",
    ),
    "an evicted initializer was replaced, and training goes on": (
        trainjob(),
        jobset(),
        [evicted(role="model-initializer"), terminated(0, role="model-initializer"), pod()],
        State.RUNNING,
        "",
    ),
    "an evicted sampler was replaced": (
        trainjob(),
        jobset(),
        [pod(), evicted(role="sampler"), pod("sampler")],
        State.RUNNING,
        "",
    ),
    "a failed initializer is tried again": (
        trainjob(),
        jobset(),
        [terminated(69, "no answer", role="dataset-initializer"), unschedulable("0/1", role="dataset-initializer")],
        State.PENDING,
        "Unschedulable",
    ),
    "a lost peer is not the cause": (
        trainjob(**ended("Failed", "FailedJobs")),
        jobset(),
        [terminated(69, "lost a peer"), terminated(78, "the disk is full", index=1)],
        State.FAILED,
        "exit code 78 wrong configuration",
    ),
    "a sampler ended it": (
        trainjob(**ended("Failed", "FailedJobs")),
        jobset(),
        [
            terminated(70, "boom"),
            terminated(1, "", role="sampler"),
            terminated(78, "no Lease", role="sampler", index=1),
        ],
        State.FAILED,
        "exit code 78 wrong configuration",
    ),
    "its samplers crashed too often": (
        trainjob(**ended("Failed", "FailedJobs")),
        jobset(),
        [terminated(75, "stopped"), terminated(1, "", role="sampler")],
        State.FAILED,
        "exit code 1",
    ),
    "a sampler that is replaced is not the cause": (
        trainjob(**ended("Failed", "FailedJobs")),
        jobset(),
        [terminated(70, "boom"), terminated(1, "", role="sampler")],
        State.FAILED,
        "exit code 70 the trainer crashed",
    ),
    "a sampler does not restart the others": (
        trainjob(),
        jobset(restarts=1),
        [terminated(69, "lost a peer"), terminated(78, "", role="sampler")],
        State.RESTARTING,
        "exit code 69 a peer or the rendezvous is unavailable",
    ),
    "out of memory": (
        trainjob(**ended("Failed", "FailedJobs")),
        jobset(),
        [terminated(137, reason="OOMKilled")],
        State.FAILED,
        "exit code 137 out of memory",
    ),
    "failed, pods gone": (trainjob(**ended("Failed", "FailedJobs")), None, [], State.FAILED, "FailedJobs"),
    "complete": (trainjob(**ended("Complete", "AllJobsCompleted")), jobset(), [terminated(0)], State.COMPLETE, ""),
    "between two attempts": (
        trainjob(),
        jobset(restarts=1),
        [terminated(70, "boom")],
        State.RESTARTING,
        "exit code 70 the trainer crashed",
    ),
    "about to stop": (trainjob(suspend=True), jobset(), [pod()], State.STOPPING, ""),
    "stopped": (trainjob(suspend=True), jobset(), [], State.STOPPED, ""),
    "in a queue": (
        with_metadata(trainjob(suspend=True), labels={QUEUE: "research"}),
        jobset(),
        [],
        State.QUEUED,
        "queue research",
    ),
    "deleted": (with_metadata(trainjob(), deletionTimestamp=objects.CREATED), jobset(), [pod()], State.DELETING, ""),
}


@pytest.mark.parametrize("name", STATES)
def test_a_runs_state(name: str) -> None:
    job, its_set, pods, state, reason = STATES[name]
    run = run_of(job, its_set, pods)
    assert (run.state, run.reason) == (state, reason)


def test_what_the_trainer_reported() -> None:
    run = run_of(trainjob(trainerStatus=progress(loss=1.25, staleness__mean=2)), jobset(restarts=2), [pod()])
    assert run.progress is not None
    assert (run.progress.percent, run.progress.seconds_left) == (42, 200)
    assert run.progress.metric("eval_loss", "loss") == 1.25
    assert run.progress.metric("staleness/mean") == 2
    assert run.progress.metric("reward") is None
    assert (run.restarts, run.nodes, run.framework, run.runtime) == (2, 2, "trl", "trl-distributed")


def test_pods_tell_of_restarts_where_the_jobset_is_hidden() -> None:
    ended, again = terminated(70, attempt=1), pod(attempt=2, phase="Pending")
    run = run_of(trainjob(), None, [ended, again])
    assert (run.restarts, run.state) == (2, State.PENDING)
    assert run_of(trainjob(), jobset(restarts=5), [again]).restarts == 5


def test_metrics_that_are_words_are_left_out() -> None:
    told = {"metrics": [{"name": "stage", "value": "warm-up"}, {"name": "loss", "value": "2"}, {"name": "x"}]}
    run = run_of(trainjob(trainerStatus=told), None, [])
    assert run.progress is not None
    assert run.progress.metrics == {"loss": 2.0}
    assert run.progress.percent is None


def test_pods_are_by_role_and_number() -> None:
    run = run_of(trainjob(), jobset(), [pod("sampler"), pod(index=1), pod(), terminated(0, role="model-initializer")])
    assert [pod.label for pod in run.pods] == ["model-initializer", "node-0", "node-1", "sampler-0"]


def test_each_run_has_its_own_pods_and_the_newest_comes_first() -> None:
    older = with_metadata(trainjob("b"), creationTimestamp="2026-11-21T10:00:00Z")
    elsewhere = with_metadata(trainjob("b"), namespace="prod", creationTimestamp="2026-11-20T10:00:00Z")
    runs = runs_of([elsewhere, older, trainjob("a")], [jobset("b", restarts=3)], [pod(run="b"), pod(run="x")])
    assert [(run.namespace, run.name) for run in runs] == [("ml", "a"), ("ml", "b"), ("prod", "b")]
    assert [len(run.pods) for run in runs] == [0, 1, 0]
    assert [run.restarts for run in runs] == [0, 3, 0]


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=2)
)


@given(metadata=st.dictionaries(st.sampled_from(["name", "labels", "creationTimestamp"]), junk), status=junk, spec=junk)
def test_objects_of_others_are_taken_as_far_as_they_tell(metadata: Object, status: Any, spec: Any) -> None:
    odd = {"metadata": metadata, "status": status, "spec": spec}
    assert run_of(odd, odd, [odd]).state in State
