"""Each cause is found in what Kubernetes says, and comes with what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from runner.tests.runs.objects import (
    NOW,
    claim,
    ended,
    event,
    held,
    job,
    jobset,
    pod,
    progress,
    queued,
    terminated,
    trainjob,
    unschedulable,
    waiting,
    workload,
)

from stoker.runs.explain import Finding, explain
from stoker.runs.read import Seen

Object = dict[str, Any]


@dataclass
class Case:
    """What the cluster has, and what the first cause and its remedy say.

    Attributes:
        cause: words of the cause.
        fix: words of the remedy.
        pods: the pods.
        trainjob: the TrainJob.
        jobset: the JobSet.
        claims: the claims.
        events: the events.
        workload: what Kueue keeps of it.
        others: what Kueue keeps of other runs in its queue.
        lacks: the ResourceClaims that do not exist.
        jobs: the JobSet's Jobs.
    """

    cause: str
    fix: str
    pods: list[Object] = field(default_factory=list)
    trainjob: Object = field(default_factory=trainjob)
    jobset: Object | None = field(default_factory=jobset)
    claims: list[Object] = field(default_factory=list)
    events: list[Object] = field(default_factory=list)
    workload: Object | None = None
    others: tuple[Object, ...] = ()
    lacks: tuple[str, ...] = ()
    jobs: tuple[Object, ...] = field(default_factory=lambda: (job(),))

    def found(self, cluster: str = "") -> list[Finding]:
        """Return the causes.

        Args:
            cluster: what commands need to find the cluster; empty for the current one.
        """
        parts = (self.trainjob, self.jobset, self.jobs, tuple(self.pods), tuple(self.claims), tuple(self.events))
        seen = Seen(
            *parts, workload=self.workload, others=self.others, lacks=self.lacks, options=cluster, cluster=cluster
        )
        return explain(seen, datetime.fromisoformat(NOW))


def unjudged() -> Object:
    """Return what Kueue keeps of a run of which it has said nothing."""
    return {**workload(), "status": {}}


def deleted() -> Object:
    made = trainjob()
    made["metadata"] |= {"deletionTimestamp": NOW, "finalizers": ["example.com/keep"]}
    return made


def with_own_runtime(**status: Any) -> Object:
    """Return a TrainJob that names a runtime of its namespace."""
    made = trainjob(**status)
    made["spec"]["runtimeRef"]["kind"] = "TrainingRuntime"
    return made


DEVICE: dict[str, Any] = {"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu-0"}]}}
SELECTOR = {"spec": {"nodeSelector": {"kubernetes.io/arch": "amd64", "gpu": "h200"}}}
GPU = {"spec": {"containers": [{"name": "node", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}}
TWICE: dict[str, Any] = {
    "spec": {
        "containers": [
            {
                "name": "node",
                "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in ("initializer", "corpora")],
            }
        ],
        "volumes": [
            {"name": name, "persistentVolumeClaim": {"claimName": "team"}} for name in ("initializer", "corpora")
        ],
    }
}
QUOTA = 'pods "tune-node-0-0-" is forbidden: exceeded quota: small, requested: pods=1, used: pods=2, limited: pods=2'
SECURITY = 'pods "x" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false'
FLAVORS = "couldn't assign flavors to pod set node"
EXTERNAL = 'Waiting for a volume to be created either by the external provisioner "csi.example.com" or manually'


def with_deadline(seconds: int, resumed: str = "") -> Object:
    """Return a TrainJob that needs 100 minutes more, and was stopped and resumed if that has a time."""
    made = trainjob(trainerStatus=progress(left=6000))
    made["spec"]["activeDeadlineSeconds"] = seconds
    if resumed:
        made["status"]["conditions"] = [{"type": "Suspended", "status": "False", "lastTransitionTime": resumed}]
    return made


CASES = {
    "deleted": Case("waits for example.com/keep", "wait until", trainjob=deleted()),
    "stopped": Case("it is stopped", "stoker resume tune", trainjob=trainjob(suspend=True)),
    "no place at a device": Case("use ResourceClaim gpu-0 do so", "repeat the `stoker rl up tune`", trainjob=held()),
    "in a queue": Case("queue research until Kueue", "kubectl get workloads", trainjob=queued()),
    "no quota now": Case(
        "it waits in queue research: couldn't assign flavors to pod set node: insufficient unused quota for memory",
        "kueue.x-k8s.io/priority-class",
        trainjob=queued(),
        workload=workload(f"{FLAVORS}: insufficient unused quota for memory in flavor default, 16Gi more needed"),
    ),
    "no quota ever": Case(
        "maximum capacity (48Gi)",
        "it can never fit",
        trainjob=queued(),
        workload=workload(f"{FLAVORS}: insufficient quota for memory in flavor default, … > maximum capacity (48Gi)"),
    ),
    "no quota of this kind": Case(
        "resource nvidia.com/gpu unavailable",
        "coveredResources",
        trainjob=queued(),
        workload=workload(f"{FLAVORS}: resource nvidia.com/gpu unavailable in ClusterQueue"),
    ),
    "shared device claims in a queue": Case(
        "does not support use of resource claims",
        "KueueDRAIntegration and KueueDRARejectWorkloadsWhenDRADisabled turned off",
        trainjob=queued(),
        workload=workload("KueueDRAIntegration feature does not support use of resource claims"),
    ),
    "device claims in a queue without DRA": Case(
        "Workload uses DRA resources",
        "KueueDRAIntegration and KueueDRARejectWorkloadsWhenDRADisabled turned off",
        trainjob=queued(),
        workload=workload("Workload uses DRA resources but the KueueDRAIntegration feature gate is not enabled"),
    ),
    "a class of devices that Kueue does not map": Case(
        "is not mapped in DRA configuration",
        "KueueDRAIntegration and KueueDRARejectWorkloadsWhenDRADisabled turned off",
        trainjob=queued(),
        workload=workload(
            "… Not found: DeviceClass gpu.example.com is not mapped in DRA configuration for podset node"
        ),
    ),
    "no such queue": Case(
        "LocalQueue research doesn't exist",
        "kubectl get localqueues --namespace ml",
        trainjob=queued(),
        workload=workload("LocalQueue research doesn't exist"),
    ),
    "a queue without quota": Case(
        "ClusterQueue training is inactive",
        "kubectl describe clusterqueues",
        trainjob=queued(),
        workload=workload("ClusterQueue training is inactive"),
    ),
    "equal to one that waits": Case(
        "it waits in queue research, behind first: " + FLAVORS,
        "wait until a run before it ends",
        trainjob=queued(),
        workload=unjudged(),
        others=(
            workload(run="runs"),
            workload(f"{FLAVORS}: insufficient unused quota for cpu in flavor default, 4 more needed", run="first"),
        ),
    ),
    "behind one that never fits": Case(
        "it waits in queue research, behind huge: " + FLAVORS,
        "wait until a run before it ends",
        trainjob=queued(),
        workload=unjudged(),
        others=(workload(f"{FLAVORS}: insufficient quota for memory, … > maximum capacity (48Gi)", run="huge"),),
    ),
    "behind runs that run": Case(
        "it waits in queue research, behind the runs before it",
        "wait until a run before it ends",
        trainjob=queued(),
        workload=unjudged(),
        others=(workload(run="runs"),),
    ),
    "preempted": Case(
        "It was stopped before: a more important run has its place",
        "kubectl describe workload trainjob-tune-1a2b3",
        trainjob=queued(),
        workload=workload(
            f"{FLAVORS}: insufficient unused quota for cpu in flavor default, 4 more needed", "Preempted"
        ),
    ),
    "just preempted": Case(
        "it waits in queue research: a more important run has its place",
        "wait until a run before it ends",
        trainjob=queued(),
        workload=workload("Preempted to accommodate a workload (UID: 1) in the ClusterQueue", "Preempted"),
    ),
    "being preempted": Case(
        "Kueue stops it: a more important run has its place",
        "goes on from there",
        [pod()],
        trainjob=queued(),
        workload=workload(evicted="Preempted"),
    ),
    "not active": Case(
        "its workload is not active",
        "kubectl patch workload trainjob-tune-1a2b3 --namespace ml",
        trainjob=queued(),
        workload=workload("The workload is deactivated", "Deactivated", active=False),
    ),
    "checks": Case(
        "these checks are not passed yet: budget",
        "shows each check and what it waits for",
        trainjob=queued(),
        workload=workload(admissionChecks=[{"name": "budget", "state": "Pending"}, {"name": "x", "state": "Ready"}]),
    ),
    "no runtime": Case(
        "Trainer cannot use the runtime trl-distributed: no such",
        "kubectl get clustertrainingruntimes",
        trainjob=trainjob(**ended("Failed", "TrainingRuntimeNotSupported", "no such")),
    ),
    "no runtime in the namespace": Case(
        "Trainer cannot use the runtime trl-distributed: no such",
        "kubectl get trainingruntimes --namespace ml",
        trainjob=with_own_runtime(**ended("Failed", "TrainingRuntimeNotSupported", "no such")),
    ),
    "too long": Case(
        "longer than spec.activeDeadlineSeconds",
        "with a longer activeDeadlineSeconds or none (docs/guides/resume-a-run.md)",
        trainjob=trainjob(**ended("Failed", "DeadlineExceeded")),
    ),
    "no controller": Case("made no JobSet of it yet", "kubeflow-trainer-controller-manager", jobset=None),
    "no controller, and a runtime of the namespace": Case(
        "made no JobSet of it yet",
        "kubectl get trainingruntimes trl-distributed --namespace ml, and kubectl logs --namespace kubeflow-system",
        trainjob=with_own_runtime(),
        jobset=None,
    ),
    "quota": Case(
        "quota is used up: small, requested: pods=1", "resourcequota", events=[event(job(), "FailedCreate", QUOTA)]
    ),
    "quota for a part of its pods": Case(
        "quota is used up: small, requested: pods=1",
        "resourcequota",
        [pod()],
        events=[event(job(), "FailedCreate", QUOTA)],
    ),
    "pod security": Case(
        'refuses its pods: "restricted:latest": allowPrivilegeEscalation',
        "runtimePatches",
        events=[event(job(), "FailedCreate", SECURITY)],
    ),
    "limit range": Case(
        "a LimitRange of the namespace refuses its pods",
        "kubectl describe limitrange --namespace ml",
        events=[event(job(), "FailedCreate", 'pods "x" is forbidden: maximum cpu usage per Container is 2')],
    ),
    "service account": Case(
        "its service account models does not exist",
        "kubectl create serviceaccount models --namespace ml",
        events=[
            event(
                job(), "FailedCreate", 'error looking up service account ml/models: serviceaccount "models" not found'
            )
        ],
    ),
    "claim without a class": Case(
        "no storage class, and the cluster has no default", "workspace.storageClassName", claims=[claim(storage=None)]
    ),
    "claim that cannot be made": Case(
        "no volume can be made for it (ReadWriteMany, class fast): failed to provision volume: unsupported access mode",
        "workspace.accessModes",
        claims=[claim(storage="fast")],
        events=[event(claim(), "ProvisioningFailed", "failed to provision volume: unsupported access mode")],
    ),
    "claim that waits": Case(
        "it has no volume yet (ReadWriteMany, class nfs): Waiting for a volume",
        "kubectl describe pvc initializer-tune",
        claims=[claim()],
        events=[event(claim(), "ExternalProvisioning", EXTERNAL, "Normal")],
    ),
    "claim that is lost": Case(
        "its volume is gone", "kubectl delete pvc initializer-tune", claims=[claim(phase="Lost")]
    ),
    "missing label": Case(
        "2 of 3 nodes do not have the labels that it asks for (gpu=h200, kubernetes.io/arch=amd64)",
        "kubectl get nodes --selector gpu=h200,kubernetes.io/arch=amd64",
        [
            unschedulable(
                "0/3 nodes are available: 2 node(s) didn't match Pod's node affinity/selector, 1 Insufficient cpu.",
                **SELECTOR,
            )
        ],
    ),
    "no gpu": Case(
        "1 of 3 nodes have too little free nvidia.com/gpu (8 for each pod)",
        "grep nvidia.com/gpu",
        [
            unschedulable(
                "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint {gpu: true}.",
                **GPU,
            )
        ],
    ),
    "taint": Case(
        "3 of 3 nodes keep it away by a taint (node.kubernetes.io/not-ready)",
        "toleration",
        [unschedulable("0/3 nodes are available: 3 node(s) had untolerated taint {node.kubernetes.io/not-ready: }.")],
    ),
    "no such claim": Case(
        "the claim inputs does not exist",
        "create the claim inputs in namespace ml",
        [unschedulable('persistentvolumeclaim "inputs" not found')],
    ),
    "no such device claim": Case(
        "the ResourceClaim gpu-0, by which it shares a device, does not exist",
        "create it in namespace ml (`stoker rl up` does so with --device-claim gpu-0=DEVICECLASS)",
        [pod(phase="Pending", **DEVICE)],
        lacks=("gpu-0",),
    ),
    "no template of a device claim": Case(
        'cannot be made: PodResourceClaim gpu: resource claim template "one-gpu" not found',
        "create the ResourceClaimTemplate that it names in namespace ml",
        [pod(phase="Pending")],
        events=[
            event(
                pod(),
                "FailedResourceClaimCreation",
                'PodResourceClaim gpu: resource claim template "one-gpu" not found',
            )
        ],
    ),
    "no class of devices": Case(
        "it claims a device of class gpu.example.com, which does not exist",
        "kubectl get deviceclasses",
        [
            unschedulable(
                "0/2 nodes are available: request gpu: device class gpu.example.com does not exist. no new claims to "
                "deallocate"
            )
        ],
    ),
    "no device": Case(
        "its devices cannot be allocated: 0/2 nodes are available: 2 cannot allocate all claims.",
        "if there is no resourceslice, no DRA driver runs",
        [unschedulable("0/2 nodes are available: 2 cannot allocate all claims.")],
    ),
    "a driver that fails": Case(
        "the node cannot prepare its devices: Failed to prepare dynamic resources: plugin gpu.example.com not found",
        "whether it runs there",
        [waiting("ContainerCreating")],
        events=[
            event(
                pod(),
                "FailedPrepareDynamicResources",
                "Failed to prepare dynamic resources: plugin gpu.example.com not found",
            )
        ],
    ),
    "claim without a volume": Case(
        "it waits for a claim that has no volume",
        "kubectl get pvc --namespace ml",
        [unschedulable("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.")],
    ),
    "cordoned": Case(
        "1 of 1 nodes are cordoned",
        "kubectl uncordon NODE",
        [unschedulable("0/1 nodes are available: 1 node(s) were unschedulable.")],
    ),
    "another zone": Case(
        "in a place that no fitting node can reach",
        "ReadWriteMany",
        [unschedulable("0/3 nodes are available: 3 node(s) had volume node affinity conflict.")],
    ),
    "an unknown word of the scheduler": Case(
        "no node takes it: 0/3 nodes are available: 3 node(s) like it not",
        "what the message names",
        [unschedulable("0/3 nodes are available: 3 node(s) like it not.")],
    ),
    "no image": Case(
        "ImagePullBackOff: Back-off pulling image",
        "(kubectl describe pod tune-node-0-0-x0k0c --namespace ml shows it)",
        [waiting("ImagePullBackOff", 'Back-off pulling image "registry.example.com/x"')],
    ),
    "no secret": Case(
        'CreateContainerConfigError: secret "hugging-face" not found',
        "create the Secret",
        [waiting("CreateContainerConfigError", 'secret "hugging-face" not found', role="model-initializer")],
    ),
    "ends again and again": Case(
        "CrashLoopBackOff: back-off 40s",
        "`stoker logs tune` shows what it said last",
        [waiting("CrashLoopBackOff", "back-off 40s restarting failed container", role="sampler")],
    ),
    "attached elsewhere": Case(
        "attached to another node: Multi-Attach",
        "ReadWriteMany",
        [waiting("ContainerCreating")],
        events=[event(pod(), "FailedAttachVolume", 'Multi-Attach error for volume "pvc-1": already used by pod(s) x')],
    ),
    "not mounted": Case(
        "a volume cannot be mounted: MountVolume.SetUp failed",
        "create the Secret",
        [waiting("ContainerCreating")],
        events=[event(pod(), "FailedMount", 'MountVolume.SetUp failed for volume "ca": configmap "ca" not found')],
    ),
    "claim mounted twice": Case(
        "it mounts claim team as the volumes initializer and corpora",
        "keep one of these volumes",
        [waiting("ContainerCreating", **TWICE)],
    ),
    "wrong flag": Case(
        "node ended with exit code 64 wrong arguments: stoker: error: --lr: did you mean --learning_rate?",
        "stoker validate",
        [terminated(64, "stoker: error: --lr: did you mean --learning_rate?"), terminated(69, "lost", index=1)],
        trainjob(**ended("Failed", "FailedJobs")),
    ),
    "crashed": Case(
        "node ended with exit code 70",
        "Kubernetes starts all pods again from the newest checkpoint, up to the runtime's retries.maxRestarts; "
        "`stoker logs tune` shows the traceback",
        [terminated(70, "ValueError: x")],
    ),
    "crashed too often": Case(
        "node ended with exit code 70",
        "it has no restart left: `stoker logs tune` shows why; correct the cause and continue it under another name "
        "(docs/guides/resume-a-run.md)",
        [terminated(70, "ValueError: x")],
        trainjob(**ended("Failed", "FailedJobs")),
        jobset(restarts=3, counted=3),
    ),
    "lost too often": Case(
        "node ended with exit code 69",
        "it has no restart left: `stoker logs tune` shows why",
        [terminated(69, "lost")],
        trainjob(**ended("Failed", "FailedJobs")),
    ),
    "stopped as the run failed": Case(
        "node ended with exit code 75",
        "it was told to stop and has saved a checkpoint: continue it under another name",
        [terminated(75, "stopped")],
        trainjob(**ended("Failed", "FailedJobs")),
    ),
    "memory": Case(
        "exit code 137 out of memory",
        "--per_device_train_batch_size",
        [terminated(137, reason="OOMKilled")],
        trainjob(**ended("Failed", "FailedJobs")),
    ),
    "model not fetched": Case(
        "model-initializer ended with exit code 66 model or data missing: no such model",
        "stoker logs tune --role model-initializer",
        [terminated(66, "no such model", role="model-initializer")],
    ),
    "somebody's program": Case(
        "exit code 3: ValueError: x", "stoker logs tune", [terminated(3, "Traceback …\nValueError: x")]
    ),
    "evicted": Case(
        "Evicted: The node was low on resource: memory.",
        "requests",
        [
            {
                **pod(phase="Failed"),
                "status": {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
            }
        ],
    ),
    "restarts": Case(
        "all pods were started again 2 times; 1 of 3 allowed restarts are used",
        "stoker get tune FOLDER --only last-error.json",
        [pod(attempt=2)],
        jobset=jobset(restarts=2, counted=1),
    ),
    "a sampler that crashes": Case(
        "vllm ended with exit code 1",
        "stoker logs tune --role sampler",
        [pod(), terminated(1, "no memory", role="sampler")],
    ),
    "a sampler that ended the run": Case(
        "vllm ended with exit code 78 wrong configuration: no Lease",
        "correct what it names",
        [terminated(143), terminated(78, "no Lease", role="sampler")],
        trainjob(**ended("Failed", "FailedJobs")),
    ),
    "samplers that crashed too often": Case(
        "vllm ended with exit code 1: no memory",
        "stoker logs tune",
        [terminated(75, "stopped"), terminated(1, "no memory", role="sampler")],
        trainjob(**ended("Failed", "FailedJobs")),
    ),
    "a sampler that ended the run and is gone": Case(
        "vllm ended with exit code 78 wrong configuration, in pod tune-sampler-0-0-x2k7c, which is gone",
        "correct what it names",
        [],
        trainjob(**ended("Failed", "FailedJobs")),
        jobs=(
            job(),
            job(
                role="sampler",
                **ended(
                    "Failed",
                    "PodFailurePolicy",
                    "Container vllm for pod ml/tune-sampler-0-0-x2k7c failed with exit code 78 matching FailJob "
                    "rule at index 2",
                ),
            ),
        ),
    ),
    "old samples": Case(
        "its samples are 6.0 steps old",
        "samplers.count",
        [pod()],
        trainjob(trainerStatus=progress(staleness__mean=6)),
    ),
    "few samplers": Case(
        "it is slow: its trainers waited for samples in 75% of the last step",
        "samplers.count",
        [pod()],
        trainjob(trainerStatus=progress(rollout__wait_seconds=9, step_time=12)),
    ),
    "a deadline that comes too early": Case(
        "it needs about 100 more minutes, and spec.activeDeadlineSeconds (3600) ends it in 50",
        "stoker stop tune, and stoker resume tune when it has stopped: it goes on from its newest checkpoint, and the "
        "deadline counts anew",
        [pod()],
        with_deadline(3600),
    ),
    "a deadline that comes too early after a resume": Case(
        "spec.activeDeadlineSeconds (3600) ends it in 55",
        "a later deadline or more devices",
        [pod()],
        with_deadline(3600, resumed="2026-11-22T10:05:00Z"),
    ),
    "silence": Case(
        "no progress for 30 minutes",
        "STOKER_HANG_TIMEOUT_SECONDS",
        [pod()],
        trainjob(trainerStatus=progress(time="2026-11-22T09:40:00Z")),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_cause_and_its_remedy(name: str) -> None:
    case = CASES[name]
    first = case.found()[0]
    assert case.cause in first.cause
    assert case.fix in first.fix
    assert "\n" not in f"{first.about}{first.cause}{first.fix}"


# Commands that ask the cluster.
COMMAND = re.compile(r"\bkubectl\b|\bstoker (?:get|logs|resume|runs|stop)\b")
CONTEXT = " --context 'team a'"


def test_each_command_of_a_remedy_names_the_context() -> None:
    fixes = [found.fix for case in CASES.values() for found in case.found(CONTEXT)]
    commands = [command for fix in fixes for command in COMMAND.split(fix)[1:]]
    assert commands
    assert [command for command in commands if CONTEXT not in command] == []


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("claim that is lost", f"kubectl delete pvc initializer-tune{CONTEXT} --namespace ml, then"),
        ("no runtime", f"kubectl get clustertrainingruntimes{CONTEXT}"),
        ("missing label", f"kubectl get nodes --selector gpu=h200,kubernetes.io/arch=amd64{CONTEXT} lists"),
        ("a queue without quota", f"kubectl describe clusterqueues{CONTEXT} says"),
    ],
)
def test_only_what_is_in_a_namespace_is_asked_for_with_one(name: str, command: str) -> None:
    fix = CASES[name].found(CONTEXT)[0].fix
    assert command in fix
    assert fix.count("--namespace") == command.count("--namespace")


def of_framework(name: str | None) -> Case:
    """Return a run of a framework that was killed out of memory; None for a run without the label."""
    case = Case("", "", [terminated(137, reason="OOMKilled")], trainjob(**ended("Failed", "FailedJobs")))
    for made in (*case.pods, case.jobset or {}):
        made["metadata"]["labels"].pop("trainer.kubeflow.org/framework")
        made["metadata"]["labels"] |= {"trainer.kubeflow.org/framework": name} if name else {}
    return case


@pytest.mark.parametrize(
    ("framework", "advice"),
    [
        ("trl", "lower --per_device_train_batch_size or --max_length"),
        ("torchtune", "lower batch_size or tokenizer.max_seq_len"),
        ("deepspeed", "lower the batch size"),
        (None, "lower the batch size"),
    ],
)
def test_advice_speaks_the_words_of_the_framework(framework: str | None, advice: str) -> None:
    fix = of_framework(framework).found()[0].fix
    assert fix == f"raise memory in spec.trainer.resourcesPerNode, or {advice}"


QUIET = {
    "training": Case("", "", [pod(), pod(index=1)], trainjob(trainerStatus=progress(loss=1))),
    "fetching": Case("", "", [pod("model-initializer")], claims=[claim(phase="Bound")]),
    "a quota that was full before": Case(
        "",
        "",
        [pod(), pod(index=1)],
        trainjob(trainerStatus=progress(loss=1)),
        events=[event(job(), "FailedCreate", QUOTA, time="2026-11-22T09:59:00Z")],
    ),
    "complete": Case("", "", [terminated(0)], trainjob(**ended("Complete", "AllJobsCompleted"))),
    "a deadline that counts since it was resumed": Case(
        "", "", [pod()], with_deadline(6400, resumed="2026-11-22T10:05:00Z")
    ),
    "a device claim that exists": Case("", "", [pod(**DEVICE)], trainjob(trainerStatus=progress(loss=1))),
    "claim waits for its pod": Case(
        "",
        "",
        [waiting("ContainerCreating")],
        claims=[claim()],
        events=[
            event(claim(), "WaitForFirstConsumer", "waiting for first consumer to be created before binding", "Normal")
        ],
    ),
}


@pytest.mark.parametrize("name", QUIET)
def test_nothing_is_found_where_nothing_is_wrong(name: str) -> None:
    assert QUIET[name].found() == []


def test_all_causes_of_a_message_are_told_and_each_once() -> None:
    message = "0/3 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, 1 node(s) were unschedulable."
    case = Case("", "", [unschedulable(message), unschedulable(message, index=1)])
    assert [found.cause for found in case.found()] == [
        "1 of 3 nodes have too little free cpu (4 for each pod)",
        "1 of 3 nodes have too little free memory",
        "1 of 3 nodes are cordoned",
    ]
