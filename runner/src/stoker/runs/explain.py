"""Why a run does not run, restarts or failed: each cause with what to do. Pure rules over what the cluster says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from stoker.cluster.volumes import volumes_of_claims
from stoker.frameworks import flag_names_of
from stoker.plan.interfaces import FlagNames
from stoker.runs.endings import advice_on, advice_on_code, told_of
from stoker.runs.kinds import CLUSTER_RUNTIMES
from stoker.runs.queueing import held_by
from stoker.runs.read import Seen, kind_of_runtime
from stoker.runs.run import (
    QUEUE,
    Ending,
    Object,
    Run,
    State,
    awaited_claim,
    causes_of,
    condition,
    counted_from,
    moment,
    part,
    rows,
)
from stoker.runs.scheduling import causes_in

# A trainer reports every few seconds. After so many without a word something is wrong, or a step is very long.
_SILENT_SECONDS = 600
_STALE = "staleness/mean"
# How long the trainers waited for samples in the last step, and how long that step took.
_WAITED, _STEP_SECONDS = "rollout/wait_seconds", "step_time"
_MOST_WAITED = 0.5  # of a step
# Kubernetes' words for a pod that ended its Job by that policy.
_BY_POLICY = re.compile(r"Container (\S+) for pod \S+/(\S+) failed with exit code (\d+) ")


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause.

    Attributes:
        about: the object that it concerns, such as `pod tune-node-0-0-x2k7c`.
        cause: what is wrong, with Kubernetes' own words where they help.
        fix: what to do.
    """

    about: str
    cause: str
    fix: str


def explain(seen: Seen, now: datetime) -> list[Finding]:
    """Return the causes, the most telling first; none if nothing is wrong.

    Args:
        seen: the run, with everything that belongs to it.
        now: the time.
    """
    run = seen.run
    found: list[Finding] = []
    for rule in _RULES:
        for finding in rule(seen, run, now):
            # Pods of one role suffer the same: one of them is enough.
            if not any(finding.cause == other.cause for other in found):
                found.append(finding)
    return found


def _deleting(seen: Seen, run: Run, now: datetime) -> Iterator[Finding]:
    if run.state is State.DELETING:
        held = part(seen.trainjob, "metadata").get("finalizers") or []
        yield Finding(
            f"TrainJob {run.name}",
            "somebody deleted it" + (f"; it waits for {', '.join(map(str, held))}" if held else ""),
            "wait until its pods have ended; if it stays for minutes, look at the log of Kubeflow Trainer's controller",
        )


def _suspended(seen: Seen, run: Run, now: datetime) -> Iterator[Finding]:
    queue = part(part(seen.trainjob, "metadata"), "labels").get(QUEUE)
    if claim := awaited_claim(seen.trainjob):
        yield Finding(
            f"TrainJob {run.name}",
            f"as many sessions as may use ResourceClaim {claim} do so",
            f"repeat the `stoker rl up {seen.named}` that started it: it waits for a place",
        )
    elif queue and run.state in (State.QUEUED, State.STOPPING):
        yield Finding(
            f"TrainJob {run.name}",
            *held_by(
                seen.workload,
                seen.others,
                queue,
                run.namespace,
                run.state is State.QUEUED,
                cluster=seen.cluster,
                options=seen.options,
            ),
        )
    elif run.state in (State.STOPPED, State.STOPPING):
        yield Finding(
            f"TrainJob {run.name}",
            "it is stopped (spec.suspend is true)" if run.state is State.STOPPED else "it is about to stop",
            f"stoker resume {seen.named} lets it go on from its newest checkpoint",
        )


def _refused_runtime(seen: Seen, run: Run, now: datetime) -> Iterator[Finding]:
    failed = condition(seen.trainjob, "Failed") or {}
    if failed.get("reason") == "TrainingRuntimeNotSupported":
        yield Finding(
            f"TrainJob {run.name}",
            f"Trainer cannot use the runtime {run.runtime}: {failed.get('message')}",
            f"name an installed runtime in spec.runtimeRef: {_runtimes(seen)}",
        )
    elif failed.get("reason") == "DeadlineExceeded":
        seconds = part(seen.trainjob, "spec").get("activeDeadlineSeconds")
        yield Finding(
            f"TrainJob {run.name}",
            f"it took longer than spec.activeDeadlineSeconds ({seconds}) allows",
            "let it go on from its newest checkpoint under another name, with a longer activeDeadlineSeconds or none "
            "(docs/guides/resume-a-run.md)",
        )


def _not_begun(seen: Seen, run: Run, now: datetime) -> Iterator[Finding]:
    if run.state is not State.PENDING or seen.pods:
        return
    for event in _warnings(seen, "TrainJob", "JobSet"):
        yield Finding(
            _about(event),
            _text(event),
            "correct what it names, then delete the TrainJob and submit it again",
        )
    if seen.jobset is None and seen.sees_jobsets:
        yield Finding(
            f"TrainJob {run.name}",
            "Kubeflow Trainer has made no JobSet of it yet",
            f"if it stays so: {_runtimes(seen, run.runtime)}, and kubectl logs{seen.cluster} --namespace "
            "kubeflow-system deployment/kubeflow-trainer-controller-manager",
        )


def _no_pods(seen: Seen, run: Run, now: datetime) -> Iterator[Finding]:
    if run.state.ended or run.state in (State.STOPPED, State.QUEUED):
        return
    made = max((_made(pod) for pod in seen.pods), default="")
    for event in _warnings(seen, "Job"):
        text = _text(event)
        # What kept pods from being made before the newest one was, does so no more.
        if event.get("reason") not in ("FailedCreate", "FailedCreatePodSandBox") or _said(event) < made:
            continue
        if "exceeded quota" in text:
            yield Finding(
                _about(event),
                f"the namespace's quota is used up: {_after(text, 'exceeded quota: ')}",
                f"kubectl describe resourcequota{seen.there}; stop other runs (`stoker runs{seen.options}`), ask for "
                "less in spec.trainer.resourcesPerNode or numNodes, or have the quota raised",
            )
        elif "violates PodSecurity" in text:
            yield Finding(
                _about(event),
                f"the namespace's pod security standard refuses its pods: {_after(text, 'violates PodSecurity ')}",
                "drop what it names from the TrainJob's runtimePatches; runtimes of the catalogue keep to `restricted`",
            )
        elif "limitranges" in text.lower() or ("maximum " in text and "usage per" in text):
            yield Finding(
                _about(event),
                f"a LimitRange of the namespace refuses its pods: {text}",
                f"kubectl describe limitrange{seen.there}, and ask for what it allows in spec.trainer.resourcesPerNode",
            )
        elif match := re.search(r'serviceaccount "([^"]+)" not found', text):
            yield Finding(
                _about(event),
                f"its service account {match[1]} does not exist",
                f"kubectl create serviceaccount {match[1]}{seen.there}, or list the namespace in the "
                "catalogue's values (namespaces)",
            )
        else:
            yield Finding(_about(event), f"its pods cannot be created: {text}", "correct what it names")


def _claims(seen: Seen, run: Run, now: datetime) -> Iterator[Finding]:
    if run.state.ended:
        return
    classes = f"kubectl get storageclass{seen.cluster}"
    for claim in seen.claims:
        phase, name = part(claim, "status").get("phase"), part(claim, "metadata").get("name")
        spec = part(claim, "spec")
        asked = ", ".join(map(str, spec.get("accessModes") or ()))
        storage = spec.get("storageClassName")
        if phase == "Lost":
            yield Finding(
                f"claim {name}",
                "its volume is gone",
                f"kubectl delete pvc {name}{seen.there}, then submit the run again: its data are lost",
            )
        if phase != "Pending":
            continue
        words = [_text(event) for event in _events(seen, "PersistentVolumeClaim") if _name(event) == name]
        if failed := next((text for text in reversed(words) if "rovision" in text and "fail" in text.lower()), ""):
            yield Finding(
                f"claim {name}",
                f"no volume can be made for it ({asked}, class {storage or 'of the cluster'}): {failed}",
                f"choose a storage class that can ({classes}; value workspace.storageClassName of the "
                f"catalogue), or an access mode that it has (workspace.accessModes); then delete the run and {name}",
            )
        elif any("no storage class" in text or "no persistent volumes available" in text for text in words) or not (
            storage or words
        ):
            yield Finding(
                f"claim {name}",
                "it has no storage class, and the cluster has no default one" if not storage else words[-1],
                f"set workspace.storageClassName of the catalogue ({classes} lists what there is); then "
                f"delete the run and {name}, and submit the run again",
            )
        elif not any("first consumer" in text or "pod to be scheduled" in text for text in words):
            told = f": {words[-1]}" if words else ""
            yield Finding(
                f"claim {name}",
                f"it has no volume yet ({asked}, class {storage}){told}",
                f"kubectl describe pvc {name}{seen.there}; if it stays so, the provisioner of class "
                f"{storage} does not work, or has no room",
            )


def _unschedulable(seen: Seen, run: Run, now: datetime) -> Iterator[Finding]:
    specs = {_name_of(pod): part(pod, "spec") for pod in seen.pods}
    for pod in run.pods:
        if pod.waits not in ("Unschedulable", "SchedulingGated") or run.state.ended:
            continue
        about, text, spec = f"pod {pod.name}", pod.message, specs[pod.name]
        if pod.waits == "SchedulingGated":
            gates = ", ".join(str(gate.get("name")) for gate in rows(spec, "schedulingGates"))
            yield Finding(about, f"it is held back by {gates}", "wait, or ask who set the gate: Kueue sets its own")
            continue
        causes = [*causes_in(text, spec, seen)]
        causes = causes or [(f"no node takes it: {text}", "change what the message names")]
        yield from (Finding(about, cause, fix) for cause, fix in causes)


def _devices(seen: Seen, run: Run, now: datetime) -> Iterator[Finding]:
    if run.state.ended:
        return
    for pod in seen.pods:
        for claim in rows(part(pod, "spec"), "resourceClaims"):
            if (name := claim.get("resourceClaimName")) in seen.lacks:
                yield Finding(
                    f"pod {_name_of(pod)}",
                    f"the ResourceClaim {name}, by which it shares a device, does not exist",
                    f"create it in namespace {run.namespace} (`stoker rl up` does so with --device-claim "
                    f"{name}=DEVICECLASS), or name another one in deviceClaims of the catalogue's values",
                )
    pending = {pod.name for pod in run.pods if pod.phase == "Pending"}
    for event in _warnings(seen, "Pod"):
        if _name(event) not in pending:
            continue
        if event.get("reason") == "FailedResourceClaimCreation":
            yield Finding(
                f"pod {_name(event)}",
                f"its device claim cannot be made: {_text(event)}",
                f"create the ResourceClaimTemplate that it names in namespace {run.namespace}, or name another one in "
                "deviceClaims of the catalogue's values",
            )
        elif event.get("reason") == "FailedPrepareDynamicResources":
            yield Finding(
                f"pod {_name(event)}",
                f"the node cannot prepare its devices: {_text(event)}",
                "this is the node's DRA driver: ask who runs the cluster whether it runs there",
            )


def _waiting(seen: Seen, run: Run, now: datetime) -> Iterator[Finding]:
    for pod in run.pods:
        if run.state.ended or pod.replaced or not pod.waits or pod.waits in _TOLD_ELSEWHERE:
            continue
        text = f"{pod.waits}: {pod.message}" if pod.message else pod.waits
        advice = _WAITING.get(pod.waits, "correct what the message names")
        yield Finding(f"pod {pod.name}", text, advice.format(pod=pod.name, there=seen.there, run=seen.named))


# By Kubernetes' word for why a container waits.
_IMAGE = (
    "correct the image's name (kubectl describe pod {pod}{there} shows it), push it to that registry, or name the "
    "registry's secret in imagePullSecrets of the catalogue"
)
_WAITING = {
    "ImagePullBackOff": _IMAGE,
    "ErrImagePull": _IMAGE,
    "InvalidImageName": _IMAGE,
    "ErrImageNeverPull": _IMAGE,
    "CreateContainerConfigError": "create the Secret or ConfigMap that it names in the run's namespace, or correct its "
    "name",
    "CreateContainerError": "correct what the message names: a command or mount that the image does not have",
    "RunContainerError": "correct what the message names: a command that the image does not have",
    "CrashLoopBackOff": "its container ends again and again: `stoker logs {run}` shows what it said last",
    "Evicted": "the node ran out of what the message names; Kubernetes starts the run again from its checkpoint. Ask "
    "for as much as the run uses (requests in the catalogue's values)",
}
_TOLD_ELSEWHERE = ("Unschedulable", "SchedulingGated")


def _mounts(seen: Seen, run: Run, now: datetime) -> Iterator[Finding]:
    starting = {pod.name for pod in run.pods if pod.phase == "Pending" and pod.node}
    for event in _warnings(seen, "Pod"):
        if _name(event) not in starting or event.get("reason") not in ("FailedMount", "FailedAttachVolume"):
            continue
        text = _text(event)
        if "Multi-Attach" in text:
            yield Finding(
                f"pod {_name(event)}",
                f"its volume is attached to another node: {text}",
                "the claim is ReadWriteOnce: run on one node (numNodes: 1), end the pod that holds it, or use storage "
                "with ReadWriteMany (workspace.accessModes of the catalogue)",
            )
        else:
            yield Finding(
                f"pod {_name(event)}",
                f"a volume cannot be mounted: {text}",
                "create the Secret, ConfigMap or claim that it names in the run's namespace, or look after the storage",
            )
    for pod in seen.pods:
        for claim, volumes in volumes_of_claims(part(pod, "spec")).items() if _name_of(pod) in starting else ():
            if len(volumes) > 1:  # the kubelet waits without an event
                yield Finding(
                    f"pod {_name_of(pod)}",
                    f"it mounts claim {claim} as the volumes {' and '.join(volumes)}, and Kubernetes never starts such "
                    "a pod",
                    "keep one of these volumes, mount it at each path, and submit the run again",
                )
    for event in _warnings(seen, "Pod"):
        if _name(event) in starting and event.get("reason") == "FailedCreatePodSandBox":
            yield Finding(
                f"pod {_name(event)}",
                f"the node cannot start it: {_text(event)}",
                "this is the node's network or runtime: ask who runs the cluster",
            )


def _endings(seen: Seen, run: Run, now: datetime) -> Iterator[Finding]:
    failed = run.state is State.FAILED
    ends = causes_of(run.pods, failed=failed)
    names = flag_names_of(run.framework) if ends else FlagNames()
    for pod, ending in ends:
        yield Finding(f"pod {pod.name}", told_of(ending), advice_on(seen.named, pod, ending, names, failed=failed))


def _failed_jobs(seen: Seen, run: Run, now: datetime) -> Iterator[Finding]:
    there = {pod.name for pod in run.pods}
    for job in seen.jobs:
        failed = condition(job, "Failed") or {}
        told = _BY_POLICY.match(str(failed.get("message") or ""))
        if told and told[2] not in there:
            ending = Ending(told[1], int(told[3]), "", "", "")
            yield Finding(
                f"Job {_name_of(job)}",
                f"{told_of(ending)}, in pod {told[2]}, which is gone",
                advice_on_code(seen.named, ending.code, failed=run.state is State.FAILED),
            )


def _restarts(seen: Seen, run: Run, now: datetime) -> Iterator[Finding]:
    if not run.restarts:
        return
    jobset = seen.jobset or {}
    most = part(part(jobset, "spec"), "failurePolicy").get("maxRestarts")
    counted = part(jobset, "status").get("restartsCountTowardsMax")
    told = f"all pods were started again {_times(run.restarts)}"
    if isinstance(counted, int) and isinstance(most, int):
        told += f"; {counted} of {most} allowed restarts are used"
    words = [_text(event) for event in _events(seen, "JobSet", "Job") if event.get("type") == "Warning"]
    told += f". Kubernetes' last word: {words[-1]}" if words else ""
    yield Finding(
        f"JobSet {run.name}",
        told,
        f"the last error is on the run's claim: stoker get {seen.named} FOLDER --only last-error.json",
    )


def _samplers(seen: Seen, run: Run, now: datetime) -> Iterator[Finding]:
    if run.state.ended:
        return
    for pod in run.pods:
        if pod.samples and pod.ending and pod.ending.code:
            yield Finding(f"pod {pod.name}", told_of(pod.ending), f"`stoker logs {seen.named} --role {pod.role}`")
        elif pod.samples and pod.restarts > 2:
            yield Finding(
                f"pod {pod.name}",
                f"its containers were restarted {_times(pod.restarts)}",
                f"`stoker logs {seen.named} --role {pod.role}` shows why vLLM ended",
            )
    stale = run.progress.metric(_STALE) if run.progress else None
    if stale is not None and stale >= 4:
        yield Finding(
            f"TrainJob {run.name}",
            f"its samples are {stale:.1f} steps old when they are trained",
            "the samplers are slower than the trainers: give the run more of them (samplers.count of the runtime), or "
            "lower --max_staleness",
        )


def _starved(seen: Seen, run: Run, now: datetime) -> Iterator[Finding]:
    if run.state is not State.RUNNING or run.progress is None:
        return
    waited, step = run.progress.metric(_WAITED), run.progress.metric(_STEP_SECONDS)
    if waited is not None and step and waited / step >= _MOST_WAITED:
        yield Finding(
            f"TrainJob {run.name}",
            f"it is slow: its trainers waited for samples in {min(1.0, waited / step):.0%} of the last step",
            "give the run more samplers (samplers.count of the runtime), or let more samples be under way (a higher "
            "--max_staleness)",
        )


def _late(seen: Seen, run: Run, now: datetime) -> Iterator[Finding]:
    limit = part(seen.trainjob, "spec").get("activeDeadlineSeconds")
    began = moment(counted_from(seen.trainjob) or "")
    left = run.progress.seconds_left if run.progress else None
    if run.state is not State.RUNNING or not isinstance(limit, int) or began is None or left is None:
        return
    took = (now - began).total_seconds()
    if took + left > limit:
        yield Finding(
            f"TrainJob {run.name}",
            f"it is too slow for its deadline: it needs about {left / 60:.0f} more minutes, and "
            f"spec.activeDeadlineSeconds ({limit}) ends it in {max(0.0, limit - took) / 60:.0f}",
            f"stoker stop {seen.named}, and stoker resume {seen.named} when it has stopped: it goes on from its newest "
            "checkpoint, and the deadline counts anew; or continue it under another name, with a later deadline or "
            "more devices (docs/guides/resume-a-run.md; `stoker estimate` says what more devices gain)",
        )


def _silent(seen: Seen, run: Run, now: datetime) -> Iterator[Finding]:
    if run.state is not State.RUNNING or run.progress is None:
        return
    last = moment(run.progress.time)
    if last is not None and (silent := (now - last).total_seconds()) > _SILENT_SECONDS:
        yield Finding(
            f"TrainJob {run.name}",
            f"its trainer reported no progress for {silent / 60:.0f} minutes",
            f"`stoker logs {seen.named}` shows what it does: a long evaluation or a checkpoint reports nothing. The "
            "runner ends a run that hangs (STOKER_HANG_TIMEOUT_SECONDS)",
        )


_Rule = Callable[[Seen, Run, datetime], Iterator[Finding]]
_RULES: tuple[_Rule, ...] = (
    _deleting,
    _suspended,
    _refused_runtime,
    _not_begun,
    _no_pods,
    _claims,
    _devices,
    _unschedulable,
    _waiting,
    _mounts,
    _endings,
    _failed_jobs,
    _restarts,
    _samplers,
    _starved,
    _late,
    _silent,
)


def _runtimes(seen: Seen, name: str = "") -> str:
    """Return the command that shows a runtime of the kind that the TrainJob names; without a name, all of them."""
    kind = kind_of_runtime(seen.trainjob) or CLUSTER_RUNTIMES
    named = f"{kind.plural} {name}" if name else kind.plural
    return f"kubectl get {named}{seen.there if kind.namespaced else seen.cluster}"


def _events(seen: Seen, *kinds: str) -> list[Mapping[str, object]]:
    """Return what Kubernetes said of objects of these kinds, the newest last."""
    found = [event for event in seen.events if part(event, "involvedObject").get("kind") in kinds]
    return sorted(found, key=_said)


def _said(event: Object) -> str:
    """Return when something was said for the last time; such times sort as text."""
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def _made(thing: Object) -> str:
    return str(part(thing, "metadata").get("creationTimestamp") or "")


def _warnings(seen: Seen, *kinds: str) -> list[Mapping[str, object]]:
    return [event for event in reversed(_events(seen, *kinds)) if event.get("type") == "Warning"]


def _text(event: Object) -> str:
    return " ".join(str(event.get("message") or event.get("reason") or "").split())


def _name(event: Object) -> str:
    return str(part(event, "involvedObject").get("name") or "")


def _about(event: Object) -> str:
    return f"{part(event, 'involvedObject').get('kind')} {_name(event)}"


def _name_of(thing: Object) -> str:
    return str(part(thing, "metadata").get("name") or "")


def _after(text: str, mark: str) -> str:
    return text.partition(mark)[2] or text


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
