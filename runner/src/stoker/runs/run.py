"""What a run is for people: one frozen value, made from the TrainJob and what belongs to it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from stoker.contract.exits import ExitCode

Object = Mapping[str, Any]

JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
_ROLE = "jobset.sigs.k8s.io/replicatedjob-name"
_JOB_INDEX = "jobset.sigs.k8s.io/job-index"
_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
_INDEX = "batch.kubernetes.io/job-completion-index"
_FRAMEWORK = "trainer.kubeflow.org/framework"
QUEUE = "kueue.x-k8s.io/queue-name"
# Annotation of a session that waits until fewer others use its device (stoker.sessions.places).
PLACE = "stoker.dev/waits-for-claim"
# The roles that do not train: a run is Running once one of the others is.
_FETCHES, _SAMPLES = "-initializer", "sampler"
# A sampler that ends with these ends the run (podFailurePolicy of its Job); otherwise it is replaced.
_FINAL = (2, ExitCode.USAGE, ExitCode.BAD_DATA, ExitCode.NO_INPUT, ExitCode.CONFIG)
# A pod that ended with these lost another one, or was told to stop: the cause is elsewhere.
_AFTER = (ExitCode.UNAVAILABLE, ExitCode.STOPPED)
# Reasons of a waiting container that say nothing is wrong yet.
_STARTING = ("ContainerCreating", "PodInitializing", "")


class State(StrEnum):
    """Where a run is in its life."""

    DELETING = "Deleting"
    COMPLETE = "Complete"
    FAILED = "Failed"
    QUEUED = "Queued"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    PENDING = "Pending"
    PREPARING = "Preparing"
    RUNNING = "Running"
    RESTARTING = "Restarting"

    @property
    def ended(self) -> bool:
        """True if the run does not go on, whatever happens."""
        return self in (State.COMPLETE, State.FAILED)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a container ended.

    Attributes:
        container: its name.
        code: its exit code.
        reason: Kubernetes' word for it, such as `Error` or `OOMKilled`.
        message: its termination message.
        time: when it ended (RFC 3339).
    """

    container: str
    code: int
    reason: str
    message: str
    time: str

    @property
    def told(self) -> str:
        """The code and what it means, such as `64 wrong arguments`."""
        if self.reason == "OOMKilled":
            return f"{self.code} out of memory"
        known = {int(code): code.meaning for code in ExitCode}
        return f"{self.code} {known[self.code]}" if self.code in known else str(self.code)


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of a run.

    Attributes:
        name: its name.
        role: the replicated job that it belongs to, such as `node` or `sampler`.
        index: its number in that job.
        attempt: the restart of the run that it belongs to, from 0.
        phase: Kubernetes' word for its life.
        node: the node it is on; empty without one.
        waits: why it does not run yet, such as `Unschedulable` or `ImagePullBackOff`; empty if nothing is wrong.
        message: Kubernetes' message about that.
        ending: how it ended, by its first container that failed, else its first; None while it runs.
        restarts: how often its containers were restarted in place.
        deleting: True once it was told to end.
        containers: names of its containers, those of its init containers first.
        replaced: True if it failed, and its Job has made another in its place.
    """

    name: str
    role: str
    index: int
    attempt: int
    phase: str
    node: str
    waits: str
    message: str
    ending: Ending | None
    restarts: int
    deleting: bool
    containers: tuple[str, ...]
    replaced: bool = False

    @property
    def fetches(self) -> bool:
        """True if it brings a model or data."""
        return self.role.endswith(_FETCHES)

    @property
    def samples(self) -> bool:
        """True if it answers a trainer's prompts."""
        return self.role == _SAMPLES

    @property
    def trains(self) -> bool:
        """True if it is one that the run is about."""
        return not self.fetches and not self.samples

    @property
    def label(self) -> str:
        """Its role and number, as log lines begin with them, such as `node-0`."""
        return self.role if self.fetches else f"{self.role}-{self.index}"


@dataclass(frozen=True, slots=True)
class ReportedProgress:
    """What the trainer last reported.

    Attributes:
        percent: of the steps; None if unknown.
        seconds_left: estimated; None if unknown.
        metrics: name → value; only finite ones.
        time: when it was reported (RFC 3339).
    """

    percent: int | None
    seconds_left: int | None
    metrics: Mapping[str, float]
    time: str

    def metric(self, *names: str) -> float | None:
        """Return the first of these metrics that the trainer reports."""
        return next((self.metrics[name] for name in names if name in self.metrics), None)


@dataclass(frozen=True, slots=True)
class Run:
    """A run, as far as the cluster tells.

    Attributes:
        namespace: where it is.
        name: its TrainJob's name.
        uid: its TrainJob's UID: another run of the same name has another.
        state: where it is in its life.
        reason: why it is there, in a few words; empty if there is nothing to say.
        runtime: the runtime it names.
        framework: the runtime's framework; empty if nothing tells.
        nodes: how many pods train; None if nothing tells.
        created: when it was submitted (RFC 3339).
        ended: when it completed or failed; empty before.
        restarts: how often all pods were restarted.
        progress: what the trainer last reported; None if it reports nothing.
        pods: its pods, by role and number.
    """

    namespace: str
    name: str
    uid: str
    state: State
    reason: str
    runtime: str
    framework: str
    nodes: int | None
    created: str
    ended: str
    restarts: int
    progress: ReportedProgress | None
    pods: tuple[Pod, ...]

    def seconds(self, now: datetime) -> float | None:
        """Return how long it has been there, or took until its end; None if nothing tells."""
        first, last = moment(self.created), moment(self.ended) or now
        return None if first is None else max(0.0, (last - first).total_seconds())


def runs_of(trainjobs: Iterable[Object], jobsets: Iterable[Object], pods: Iterable[Object]) -> list[Run]:
    """Return the runs of lists of objects, newest first."""
    sets = {_key(found): found for found in jobsets}
    theirs: dict[tuple[str, str], list[Object]] = {}
    for pod in pods:
        name = _labels(pod).get(JOBSET_NAME, "")
        theirs.setdefault((_key(pod)[0], name), []).append(pod)
    found = [run_of(job, sets.get(_key(job)), theirs.get(_key(job), ())) for job in trainjobs]
    return sorted(found, key=lambda run: (run.created, run.name), reverse=True)


def run_of(trainjob: Object, jobset: Object | None, pods: Sequence[Object]) -> Run:
    """Return a run.

    Args:
        trainjob: its TrainJob.
        jobset: its JobSet; None if there is none, or the user may not see it.
        pods: its pods.
    """
    metadata, spec, status = part(trainjob, "metadata"), part(trainjob, "spec"), part(trainjob, "status")
    seen = sorted(_with_replaced(pods), key=lambda pod: (not pod.fetches, pod.role, pod.index, pod.attempt))
    # Without the JobSet, its pods tell: each has the number of the restart that made it.
    attempt = max((pod.attempt for pod in seen), default=0)
    restarts = attempt if jobset is None else _whole(part(jobset, "status").get("restarts"), 0)
    state, reason = _state(trainjob, seen, restarts)
    done = condition(trainjob, "Complete") or condition(trainjob, "Failed") or {}
    reference = part(spec, "runtimeRef")
    return Run(
        namespace=str(metadata.get("namespace") or ""),
        name=str(metadata.get("name") or ""),
        uid=str(metadata.get("uid") or ""),
        state=state,
        reason=reason,
        runtime=str(reference.get("name") or ""),
        framework=next((label for pod in pods if (label := _labels(pod).get(_FRAMEWORK))), "")
        or str(_labels(jobset or {}).get(_FRAMEWORK) or ""),
        nodes=_nodes(spec, jobset, seen),
        created=str(metadata.get("creationTimestamp") or ""),
        ended=str(done.get("lastTransitionTime") or ""),
        restarts=restarts,
        progress=_progress(status),
        pods=tuple(seen),
    )


def _with_replaced(objects: Sequence[Object]) -> Iterator[Pod]:
    """Yield the pods of a run; those that failed know whether another has taken their place."""
    pods = [pod_of(pod) for pod in objects]
    taken = {(pod.role, pod.index, pod.attempt) for pod in pods if pod.phase != "Failed"}
    for pod in pods:
        gone = pod.phase == "Failed" and (pod.role, pod.index, pod.attempt) in taken
        yield replace(pod, replaced=gone)


def pod_of(pod: Object) -> Pod:
    """Return one pod of a run."""
    metadata, spec, status, labels = part(pod, "metadata"), part(pod, "spec"), part(pod, "status"), _labels(pod)
    waits, message = _waits(status)
    statuses = [*rows(status, "initContainerStatuses"), *rows(status, "containerStatuses")]
    return Pod(
        name=str(metadata.get("name") or ""),
        role=str(labels.get(_ROLE) or "pod"),
        index=_whole(labels.get(_INDEX), _whole(labels.get(_JOB_INDEX), 0)),
        attempt=_whole(labels.get(_ATTEMPT), 0),
        phase=str(status.get("phase") or "Pending"),
        node=str(spec.get("nodeName") or ""),
        waits=waits,
        message=message,
        ending=_ending(status),
        restarts=sum(_whole(one.get("restartCount"), 0) for one in statuses),
        deleting=bool(metadata.get("deletionTimestamp")),
        containers=tuple(str(one.get("name")) for one in [*rows(spec, "initContainers"), *rows(spec, "containers")]),
    )


def condition(thing: Object, kind: str) -> Object | None:
    """Return a condition of an object that is true; None if it has none of that type."""
    for found in rows(part(thing, "status"), "conditions"):
        if found.get("type") == kind and found.get("status") == "True":
            return found
    return None


def moment(time: str) -> datetime | None:
    """Return a time of the API server; None if it is empty, or no time."""
    try:
        return datetime.fromisoformat(time) if time else None
    except ValueError:
        return None


def part(thing: Object, name: str) -> Object:
    """Return a field that is an object; an empty one if it is missing."""
    found = thing.get(name)
    return found if isinstance(found, Mapping) else {}


def rows(thing: Object, name: str) -> list[Object]:
    """Return a field that is a list of objects; an empty one if it is missing."""
    found = thing.get(name)
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


def causes_of(pods: Iterable[Pod], *, failed: bool) -> list[tuple[Pod, Ending]]:
    """Return which ends of pods explain that a run failed or restarts, the most telling first.

    A peer that was only lost or stopped is left out beside one with a cause. A sampler explains what failed if its code
    ends the run, or if no other pod does. A pod that was replaced explains no run that goes on.

    Args:
        pods: the run's pods.
        failed: True if the run has failed for good.
    """
    ends = [(pod, pod.ending) for pod in pods if pod.ending and pod.ending.code and (failed or not pod.replaced)]
    ends.sort(key=lambda end: (not end[0].samples, end[1].time))
    others = [end for end in ends if not end[0].samples]
    final = [end for end in ends if end[0].samples and end[1].code in _FINAL] if failed else []
    causes = final + [end for end in others if end[1].code not in _AFTER]
    return causes or (ends if failed else others)


def awaited_claim(trainjob: Object) -> str:
    """Return the ResourceClaim that a session waits for a place at; empty for any other run."""
    return str(part(part(trainjob, "metadata"), "annotations").get(PLACE) or "")


def counted_from(trainjob: Object) -> str | None:
    """Return when Trainer began to count spec.activeDeadlineSeconds (RFC 3339); None while it is suspended."""
    if part(trainjob, "spec").get("suspend") is True or condition(trainjob, "Suspended"):
        return None
    conditions = rows(part(trainjob, "status"), "conditions")
    resumed = next((one for one in conditions if one.get("type") == "Suspended"), {})
    return str(resumed.get("lastTransitionTime") or part(trainjob, "metadata").get("creationTimestamp") or "")


def _state(trainjob: Object, pods: Sequence[Pod], restarts: int) -> tuple[State, str]:
    if part(trainjob, "metadata").get("deletionTimestamp"):
        return State.DELETING, ""
    if condition(trainjob, "Complete"):
        return State.COMPLETE, ""
    if failed := condition(trainjob, "Failed"):
        return State.FAILED, _why_failed(pods, failed=True) or str(failed.get("reason") or "")
    if part(trainjob, "spec").get("suspend") is True:
        if any(pod.trains and not pod.ending for pod in pods):
            return State.STOPPING, ""
        queue = _labels(trainjob).get(QUEUE)
        if claim := awaited_claim(trainjob):
            return State.QUEUED, f"claim {claim}"
        return (State.QUEUED, f"queue {queue}") if queue else (State.STOPPED, "")
    pods = [pod for pod in pods if not pod.replaced]
    # What keeps a run from going on comes before what goes on.
    waits = next((pod.waits for pod in pods if pod.waits and not pod.samples), "")
    if any(pod.trains and pod.phase == "Running" and not pod.deleting for pod in pods):
        return State.RUNNING, waits or next((f"sampler: {pod.waits}" for pod in pods if pod.samples and pod.waits), "")
    if _are_finished([pod for pod in pods if pod.trains]):
        return State.RUNNING, "its pods have ended"
    if restarts and not any(pod.trains and not pod.deleting and not pod.ending for pod in pods):
        return State.RESTARTING, _why_failed(pods)
    if any(pod.fetches and pod.phase == "Running" for pod in pods) and not waits:
        return State.PREPARING, ""
    return State.PENDING, waits or _why_failed(pods)


def _are_finished(pods: Sequence[Pod]) -> bool:
    """Return whether all pods have ended well: Trainer says so of their run a moment later."""
    return bool(pods) and all(pod.phase == "Succeeded" for pod in pods)


def _why_failed(pods: Sequence[Pod], *, failed: bool = False) -> str:
    """Return how the pod with the cause ended."""
    return next((f"exit code {ending.told}" for _, ending in causes_of(pods, failed=failed)), "")


def _waits(status: Object) -> tuple[str, str]:
    """Return why a pod does not run, and Kubernetes' message."""
    if status.get("phase") == "Failed" and status.get("reason"):  # Evicted, for example
        return str(status["reason"]), str(status.get("message") or "")
    for found in rows(status, "conditions"):
        if found.get("type") == "PodScheduled" and found.get("status") == "False":
            return str(found.get("reason") or "Unschedulable"), str(found.get("message") or "")
    for one in [*rows(status, "initContainerStatuses"), *rows(status, "containerStatuses")]:
        waiting = part(part(one, "state"), "waiting")
        if str(waiting.get("reason") or "") not in _STARTING:
            return str(waiting["reason"]), str(waiting.get("message") or "")
    return "", ""


def _ending(status: Object) -> Ending | None:
    """Return how a pod ended, or why a container that is to be restarted did."""
    over = status.get("phase") in ("Succeeded", "Failed")
    found = []
    for one in [*rows(status, "initContainerStatuses"), *rows(status, "containerStatuses")]:
        ended = part(part(one, "state"), "terminated")
        if ended and (over or _whole(ended.get("exitCode"), 0)):
            found.append(
                Ending(
                    container=str(one.get("name") or ""),
                    code=_whole(ended.get("exitCode"), 0),
                    reason=str(ended.get("reason") or ""),
                    message=str(ended.get("message") or "").strip(),
                    time=str(ended.get("finishedAt") or ""),
                )
            )
    failed = [ending for ending in found if ending.code]
    return failed[0] if failed else found[-1] if found and over else None


def _nodes(spec: Object, jobset: Object | None, pods: Sequence[Pod]) -> int | None:
    given = part(spec, "trainer").get("numNodes")
    if isinstance(given, int):
        return given
    for job in rows(part(jobset or {}, "spec"), "replicatedJobs"):
        if job.get("name") == "node":
            return _whole(part(part(job, "template"), "spec").get("parallelism"), 1)
    return len({pod.index for pod in pods if pod.trains}) or None


def _progress(status: Object) -> ReportedProgress | None:
    reported = part(status, "trainerStatus")
    if not reported:
        return None
    metrics = {}
    for row in rows(reported, "metrics"):
        try:
            value = float(row.get("value", ""))
        except (TypeError, ValueError):
            continue  # a runtime of somebody else may report words
        if math.isfinite(value):  # JSON knows no other numbers, nor has a curve a place for them
            metrics[str(row.get("name"))] = value
    percent, left = reported.get("progressPercentage"), reported.get("estimatedRemainingSeconds")
    return ReportedProgress(
        percent=percent if isinstance(percent, int) else None,
        seconds_left=left if isinstance(left, int) else None,
        metrics=metrics,
        time=str(reported.get("lastUpdatedTime") or ""),
    )


def _whole(value: Any, otherwise: int) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return otherwise


def _labels(thing: Object) -> Object:
    return part(part(thing, "metadata"), "labels")


def _key(thing: Object) -> tuple[str, str]:
    metadata = part(thing, "metadata")
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")
