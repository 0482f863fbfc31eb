"""Objects as a cluster has them in the life of a run: what Trainer, JobSet, the Job controller and kubelets write."""

from __future__ import annotations

from typing import Any

import builders

Object = dict[str, Any]

CREATED = "2026-11-22T10:00:00Z"
NOW = "2026-11-22T10:10:00+00:00"
IMAGE = "registry.example.com/stoker-dev/trl:0.1.0-cuda"


def trainjob(name: str = "tune", *, nodes: int = 2, suspend: bool = False, **status: Any) -> Object:
    """Return a TrainJob that Trainer has seen."""
    made = builders.trainjob(name, numNodes=nodes, spec={"suspend": suspend})
    metadata = {"name": name, "namespace": "ml", "uid": f"uid-{name}", "creationTimestamp": CREATED, "labels": {}}
    return {**made, "metadata": metadata, "status": status}


def queued(name: str = "tune") -> Object:
    """Return a TrainJob that Kueue has not admitted."""
    made = trainjob(name, suspend=True)
    made["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research"}
    return made


def held() -> Object:
    """Return the TrainJob of a session that waits until fewer others use its device."""
    made = trainjob(suspend=True)
    made["metadata"]["annotations"] = {"stoker.dev/waits-for-claim": "gpu-0"}
    return made


def workload(reserved: str = "", evicted: str = "", *, run: str = "tune", active: bool = True, **status: Any) -> Object:
    """Return what Kueue keeps of a TrainJob.

    Args:
        reserved: why it has no quota; empty if it has.
        evicted: why it was stopped; empty if it was not.
        run: the TrainJob's name.
        active: False if somebody has taken it out of the queue.
        status: further fields of its status.
    """
    conditions = [_condition("QuotaReserved", "False" if reserved else "True", "Pending", reserved)]
    if evicted:
        conditions.append(_condition("Evicted", "True", evicted, f"{evicted} to accommodate a workload (UID: 1)"))
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": f"trainjob-{run}-1a2b3",
            "namespace": "ml",
            "ownerReferences": [{"kind": "TrainJob", "name": run, "uid": f"uid-{run}"}],
        },
        "spec": {"queueName": "research", **({} if active else {"active": False})},
        "status": {"conditions": conditions, **status},
    }


def ended(kind: str, reason: str, message: str = "") -> Object:
    """Return the status of a TrainJob that is over."""
    return {"conditions": [_condition(kind, "True", reason, message)]}


def progress(percent: int = 42, left: int = 200, time: str = "2026-11-22T10:09:55Z", **metrics: float) -> Object:
    """Return what a trainer reported."""
    told = [{"name": name.replace("__", "/"), "value": f"{value:.6g}"} for name, value in metrics.items()]
    return {
        "progressPercentage": percent,
        "estimatedRemainingSeconds": left,
        "metrics": told,
        "lastUpdatedTime": time,
    }


def jobset(name: str = "tune", restarts: int = 0, counted: int | None = None) -> Object:
    """Return the JobSet of a TrainJob."""
    jobs = [{"name": "node", "replicas": 1, "template": {"spec": {"parallelism": 2, "completions": 2}}}]
    status: Object = {"restarts": restarts}
    if counted is not None:
        status["restartsCountTowardsMax"] = counted
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": f"uid-jobset-{name}",
            "labels": {"trainer.kubeflow.org/framework": "trl"},
        },
        "spec": {"replicatedJobs": jobs, "failurePolicy": {"maxRestarts": 3}},
        "status": status,
    }


def real_jobset() -> Object:
    """Return a JobSet with the node of our own runtime, and its claim."""
    found = jobset()
    found["spec"] |= {
        "replicatedJobs": [builders.replicated_jobs(builders.RUNTIME)[0]],
        "volumeClaimPolicies": builders.RUNTIME["spec"]["template"]["spec"]["volumeClaimPolicies"],
    }
    return found


def pod(
    role: str = "node",
    index: int = 0,
    *,
    run: str = "tune",
    phase: str = "Running",
    state: Object | None = None,
    attempt: int = 0,
    spec: Object | None = None,
    conditions: list[Object] | None = None,
    node: str = "worker-1",
    **status: Any,
) -> Object:
    """Return a pod of a run.

    Args:
        role: its replicated job.
        index: its completion index.
        run: the run's name.
        phase: its phase.
        state: of its container; by default it runs.
        attempt: the restart that it belongs to.
        spec: fields of its spec.
        conditions: its conditions.
        node: the node it is on.
        status: further fields of its status.
    """
    container = role if role != "sampler" else "vllm"
    statuses = [{"name": container, "restartCount": 0, "state": state or {"running": {"startedAt": CREATED}}}]
    name = f"{run}-{role}-0-{index}-x{attempt}k{index}c"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": f"uid-{name}",
            "creationTimestamp": CREATED,
            "labels": {
                "jobset.sigs.k8s.io/jobset-name": run,
                "jobset.sigs.k8s.io/replicatedjob-name": role,
                "jobset.sigs.k8s.io/job-index": "0",
                "jobset.sigs.k8s.io/restart-attempt": str(attempt),
                "batch.kubernetes.io/job-completion-index": str(index),
                "trainer.kubeflow.org/framework": "trl",
            },
        },
        "spec": {
            **({"nodeName": node} if node else {}),
            "containers": [{"name": container, "image": IMAGE, "resources": {"requests": {"cpu": "4"}}}],
            "volumes": [{"name": "initializer", "persistentVolumeClaim": {"claimName": f"initializer-{run}"}}],
            **(spec or {}),
        },
        "status": {"phase": phase, "containerStatuses": statuses, "conditions": conditions or [], **status},
    }


def unschedulable(message: str, **more: Any) -> Object:
    """Return a pod that no node takes."""
    conditions = [_condition("PodScheduled", "False", "Unschedulable", message)]
    return {**pod(phase="Pending", node="", conditions=conditions, containerStatuses=[], **more)}


def waiting(reason: str, message: str = "", **more: Any) -> Object:
    """Return a pod whose container waits."""
    return pod(phase="Pending", state={"waiting": {"reason": reason, "message": message}}, **more)


def terminated(code: int, message: str = "", reason: str = "", **more: Any) -> Object:
    """Return a pod that has ended."""
    ended = {
        "exitCode": code,
        "reason": reason or ("Error" if code else "Completed"),
        "message": message,
        "finishedAt": "2026-11-22T10:05:00Z",
    }
    return pod(phase="Failed" if code else "Succeeded", state={"terminated": ended}, **more)


def claim(
    name: str = "initializer-tune", phase: str = "Pending", storage: str | None = "nfs", mode: str = "Many"
) -> Object:
    """Return a claim."""
    spec: Object = {"accessModes": [f"ReadWrite{mode}"], **({"storageClassName": storage} if storage else {})}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}"},
        "spec": spec,
        "status": {"phase": phase},
    }


def event(
    about: Object, reason: str, message: str, kind: str = "Warning", time: str = "2026-11-22T10:01:00Z"
) -> Object:
    """Return what Kubernetes said of an object."""
    metadata = about["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{reason.lower()}.{time[11:19].replace(':', '')}", "namespace": "ml"},
        "involvedObject": {"kind": about["kind"], "name": metadata["name"], "uid": metadata["uid"], "namespace": "ml"},
        "type": kind,
        "reason": reason,
        "message": message,
        "lastTimestamp": time,
    }


def job(run: str = "tune", role: str = "node", **status: Any) -> Object:
    """Return the Job of a role."""
    name = f"{run}-{role}-0"
    labels = {"jobset.sigs.k8s.io/jobset-name": run}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "ml", "uid": f"uid-job-{name}", "labels": labels},
        "spec": {},
        "status": status,
    }


def _condition(kind: str, status: str, reason: str, message: str = "") -> Object:
    time = "2026-11-22T10:05:01Z"
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": time}
