"""Merges a TrainJob and its runtime into what each node's container starts with. Pure.

Follows Kubeflow Trainer v2.3.0 (pkg/runtime/framework/plugins/torch, pkg/runtime/core): what Trainer injects, and what
a TrainJob replaces or merges.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stoker.cluster.patches import patched
from stoker.cluster.schema import shape_errors, without_nulls
from stoker.contract.exits import ExitCode, RunError
from stoker.frameworks.torchtune import admission as torchtune

_ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
_FRAMEWORK = "trainer.kubeflow.org/framework"
_CONTAINER = "node"
# Defaults of Kubernetes for terminationGracePeriodSeconds and of a Job's backoffLimit.
_GRACE_SECONDS = 30
_BACKOFF_LIMIT = 6
# Stands for the five characters that the API server adds to generateName.
_GENERATED = "abcde"
# Fields of a TrainJob (trainer.kubeflow.org/v1alpha1, Trainer v2.3.0); Kubernetes refuses others.
_SPEC_FIELDS = (
    *("runtimeRef", "initializer", "trainer", "runtimePatches", "suspend", "activeDeadlineSeconds", "managedBy"),
)
_INITIALIZER_FIELDS = ("storageUri", "env", "secretRef")
_TRAINER_FIELDS = ("image", "command", "args", "env", "numNodes", "resourcesPerNode", "numProcPerNode")
# An annotation of a node's pod that a runtime's env may read (the Job controller sets it).
_RANK_ANNOTATION = "batch.kubernetes.io/job-completion-index"
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_FACTORS = {**{suffix: 10.0**power for suffix, power in _DECIMAL.items()}, **{s: 2.0**p for s, p in _BINARY.items()}}
_QUANTITY = re.compile(rf"^(\d+\.?\d*|\.\d+)(?:({'|'.join(_FACTORS)})|[eE]([+-]?\d{{1,2}}))$")


@dataclass(frozen=True, slots=True)
class NodeJob:
    """What the nodes of a TrainJob run.

    Attributes:
        name: the TrainJob's name.
        nodes: number of pods.
        image: the container's image; empty if the runtime names none.
        argv: command and arguments of the container, unexpanded.
        env: the container's env entries, from the runtime and the TrainJob.
        mounts: volume name → the paths where it is mounted.
        max_restarts: restarts the JobSet allows.
        resources: requests, else limits, of the container.
        limits: limits of the container.
        counted: resources that Trainer derives the number of processes from: only the TrainJob's, if it has any.
        claims: True if the container claims devices (DRA), which have no quantity.
        processes: the TrainJob's numProcPerNode; None if it gives none.
        injected: True if Trainer injects PET_* (it does if spec.trainer exists).
        labels: labels of the trainer's pods that the runtime sets.
        grace_seconds: time between SIGTERM and SIGKILL.
        has_more_env: True if the container has variables besides, whose names only the cluster knows (envFrom).
    """

    name: str
    nodes: int
    image: str
    argv: tuple[str, ...]
    env: tuple[Mapping[str, Any], ...]
    mounts: Mapping[str, tuple[str, ...]]
    max_restarts: int
    resources: Mapping[str, str]
    limits: Mapping[str, str]
    counted: Mapping[str, str]
    claims: bool
    processes: int | None
    injected: bool
    labels: Mapping[str, str]
    grace_seconds: int
    has_more_env: bool = False

    @property
    def framework(self) -> str:
        """The framework in the pods' label; empty without that label."""
        return str(self.labels.get(_FRAMEWORK, ""))

    def environment(self, node: int, attempt: int, job_id: str, run_id: str, address: str, port: int) -> dict[str, str]:
        """Return the env of one node's container, with references resolved.

        Args:
            node: its rank.
            attempt: restarts before this attempt.
            job_id: stands for the JobSet's UID.
            run_id: stands for the Job's UID.
            address: stands for node 0's host name.
            port: the rendezvous port there.

        Raises:
            RunError: a variable comes from something that only a cluster has (78).
        """
        metadata = {
            **self.labels,
            "jobset.sigs.k8s.io/jobset-name": self.name,
            "jobset.sigs.k8s.io/jobset-uid": job_id,
            "jobset.sigs.k8s.io/restart-attempt": str(attempt),
            "batch.kubernetes.io/controller-uid": run_id,
            _RANK_ANNOTATION: str(node),
        }
        values: dict[str, str] = {}
        with shape_errors():
            for entry in self.env:
                values[entry["name"]] = self._value(entry, metadata, values)
        if self.injected:
            values["PET_NNODES"] = str(self.nodes)
            processes = self.processes_per_node
            values["PET_NPROC_PER_NODE"] = "auto" if processes is None else str(processes)
            values["PET_NODE_RANK"] = str(node)
        values["PET_MASTER_ADDR"] = address
        values["PET_MASTER_PORT"] = str(port)
        return values

    def _value(self, entry: Mapping[str, Any], metadata: Mapping[str, str], values: Mapping[str, str]) -> str:
        source = entry.get("valueFrom")
        if source is None:
            return expand(entry.get("value") or "", values)
        path = source.get("fieldRef", {}).get("fieldPath", "")
        for prefix in ("metadata.labels['", "metadata.annotations['"):
            if path.startswith(prefix):
                return metadata.get(path.removeprefix(prefix).removesuffix("']"), "")
        kind, _, resource = source.get("resourceFieldRef", {}).get("resource", "").partition(".")
        if kind in ("requests", "limits"):
            amounts = self.resources if kind == "requests" else self.limits
            return str(math.ceil(quantity(amounts.get(resource, "0"))))
        raise RunError(
            ExitCode.CONFIG,
            f"env {entry['name']} comes from {', '.join(source)}, which only a cluster has: "
            "for a local run, give it a `value` in the TrainJob's spec.trainer.env",
        )

    @property
    def gpus_per_node(self) -> int:
        """The GPUs that Trainer counts in each pod."""
        return next((int(quantity(text)) for name, text in self.counted.items() if "gpu" in name.lower()), 0)

    @property
    def processes_per_node(self) -> int | None:
        """The number of processes that Trainer writes; None for `auto`, which leaves it to the GPUs."""
        if self.processes is not None or self.gpus_per_node:
            return self.processes
        return max(1, math.ceil(quantity(self.counted.get("cpu", "0"))))


def quantity(text: str) -> float:
    """Return a Kubernetes quantity as a number, for example 0.5 for `500m`.

    Raises:
        RunError: the text is not a quantity (64).
    """
    match = _QUANTITY.match(str(text))
    if match is None:
        raise RunError(ExitCode.USAGE, f"{text!r} is not a quantity: write for example 500m, 2 or 4Gi")
    return float(match[1]) * (10.0 ** int(match[3]) if match[3] else _FACTORS[match[2]])


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by the variable and `$$` by `$`, as the kubelet does. Unknown names stay as they are."""
    return re.sub(
        r"\$(?:\$|\(([^)]*)\))", lambda match: "$" if match[0] == "$$" else values.get(match[1], match[0]), text
    )


def job_of(trainjob: Mapping[str, Any], runtime: Mapping[str, Any]) -> NodeJob:
    """Return what the nodes of a TrainJob run on a runtime.

    Args:
        trainjob: a TrainJob.
        runtime: a ClusterTrainingRuntime or TrainingRuntime.

    Raises:
        RunError: the two do not fit, or one is invalid (64).
    """
    trainjob = without_nulls(trainjob)
    _expect_kind(trainjob, ("TrainJob",))
    _expect_kind(runtime, ("ClusterTrainingRuntime", "TrainingRuntime"))
    with shape_errors():
        return _job_of(trainjob, patched(trainjob, runtime))


@dataclass(frozen=True, slots=True)
class InitializerJob:
    """What fetches a model or a data set before the nodes start.

    Attributes:
        name: the name of its job and container.
        job: its container, as a job with one node.
        secret: name of the secret whose keys become its variables; None if the TrainJob names none.
        backoff_limit: how often it is retried alone before the whole run is.
        is_ours: True if the runtime makes it run `stoker fetch`, False if its image decides.
    """

    name: str
    job: NodeJob
    secret: str | None
    backoff_limit: int
    is_ours: bool


def initializers_of(trainjob: Mapping[str, Any], runtime: Mapping[str, Any]) -> tuple[InitializerJob, ...]:
    """Return the initializers of a TrainJob on a runtime, in the order they run here.

    They run for every TrainJob, even if it does not mention them.

    Raises:
        RunError: the two do not fit, or one is invalid (64).
    """
    trainjob = without_nulls(trainjob)
    with shape_errors():
        runtime = patched(trainjob, runtime)
        found = (_initializer_of(trainjob, runtime, kind) for kind in ("dataset", "model"))
        return tuple(initializer for initializer in found if initializer is not None)


def _initializer_of(trainjob: Mapping[str, Any], runtime: Mapping[str, Any], kind: str) -> InitializerJob | None:
    name, given = f"{kind}-initializer", runtime["metadata"]["name"]
    spec = trainjob["spec"]
    asked = (spec.get("initializer") or {}).get(kind)
    _expect_fields("spec.initializer", spec.get("initializer") or {}, ("dataset", "model"))
    _expect_fields(f"spec.initializer.{kind}", asked or {}, _INITIALIZER_FIELDS)
    jobset = runtime["spec"]["template"]["spec"]
    found = _job(jobset, name)
    if found is None:
        if asked is None:
            return None
        raise RunError(
            ExitCode.USAGE,
            f"spec.initializer.{kind} is set, but runtime {given} has no job {name}: choose a runtime that has one",
        )
    spec_of_job = found["template"]["spec"]
    template, backoff_limit = spec_of_job["template"], int(spec_of_job.get("backoffLimit", _BACKOFF_LIMIT))
    pod = template["spec"]
    container = _named(pod.get("containers", ()), name, given)
    told = asked or {}
    uri = [{"name": "STORAGE_URI", "value": told["storageUri"]}] if told.get("storageUri") else []
    env = _merged_env(container.get("env", ()), [*told.get("env", ()), *uri])
    argv = (*container.get("command", ()), *container.get("args", ()))
    _expect_strings("command or args", argv)
    for entry in env:
        _expect_strings("env", [entry["name"], entry.get("value") or ""])
    declared = container.get("resources", {})
    resources = _requests_of(declared)
    secret = (told.get("secretRef") or {}).get("name")
    node_job = NodeJob(
        name=_name_of(trainjob["metadata"]),
        nodes=1,
        image=str(container.get("image") or ""),
        # Upstream's images start this by default.
        argv=argv or ("stoker", "fetch", kind),
        env=env,
        mounts=mounts_of(container),
        max_restarts=int(jobset.get("failurePolicy", {}).get("maxRestarts", 0)),
        resources=resources,
        limits=declared.get("limits", {}),
        counted=resources,
        claims=False,
        processes=None,
        injected=False,
        labels=dict(template.get("metadata", {}).get("labels") or {}),
        grace_seconds=int(pod.get("terminationGracePeriodSeconds", _GRACE_SECONDS)),
    )
    return InitializerJob(name, node_job, secret, backoff_limit, is_ours=argv[:2] == ("stoker", "fetch"))


def mounts_of(container: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the volumes of a container, and the paths where each is mounted."""
    found: dict[str, tuple[str, ...]] = {}
    for mount in container.get("volumeMounts", ()):
        found[mount["name"]] = (*found.get(mount["name"], ()), mount["mountPath"])
    return found


def _job_of(trainjob: Mapping[str, Any], runtime: Mapping[str, Any]) -> NodeJob:
    wanted, given = trainjob["spec"]["runtimeRef"]["name"], runtime["metadata"]["name"]
    if wanted != given:
        raise RunError(
            ExitCode.USAGE,
            f"the TrainJob names runtime {wanted!r}, but --runtime is {given!r}: give the right file",
        )
    spec = trainjob["spec"]
    trainer = spec.get("trainer")
    _expect_fields("spec", spec, _SPEC_FIELDS)
    _expect_fields("spec.trainer", trainer or {}, _TRAINER_FIELDS)
    jobset, job, container = trainer_of(runtime)
    template = job["template"]["spec"]["template"]
    told = trainer or {}
    command = told.get("command") or container.get("command", ())
    args = told.get("args") or container.get("args", ())
    env = _merged_env(container.get("env", ()), told.get("env", ()))
    if isinstance(command, str) or isinstance(args, str):
        raise RunError(ExitCode.USAGE, 'command and args of a TrainJob are lists: write [--flag, "3"]')
    _expect_strings("command or args", [*command, *args])
    for entry in env:
        _expect_strings("env", [entry["name"], entry.get("value") or ""])
    labels = dict(template.get("metadata", {}).get("labels") or {})
    _expect_strings("labels", [*labels.values()])
    declared = container.get("resources", {})
    asked = told.get("resourcesPerNode")
    merged = merged_resources(declared, asked or {})
    node_job = NodeJob(
        name=_name_of(trainjob["metadata"]),
        nodes=_count("numNodes", told.get("numNodes", _policy(runtime).get("numNodes", 1))),
        image=str(told.get("image") or container.get("image") or ""),
        argv=(*command, *args),
        env=env,
        mounts=mounts_of(container),
        max_restarts=int(jobset.get("failurePolicy", {}).get("maxRestarts", 0)),
        resources=_requests_of(merged),
        limits=merged["limits"],
        counted=_requests_of(declared if asked is None else asked),
        claims=bool(declared.get("claims") or (asked or {}).get("claims")),
        processes=_count("numProcPerNode", told["numProcPerNode"]) if "numProcPerNode" in told else None,
        injected=trainer is not None,
        labels=labels,
        grace_seconds=int(template["spec"].get("terminationGracePeriodSeconds", _GRACE_SECONDS)),
        has_more_env=bool(container.get("envFrom")),
    )
    if command != list(torchtune.COMMAND) or not told.get("command") or _policy(runtime).get("torch") is None:
        return node_job
    recipe = torchtune.rewritten(
        given, args, container.get("command", ()), node_job.nodes, node_job.processes_per_node, node_job.gpus_per_node
    )
    return replace(node_job, argv=(*recipe, *args))


def _policy(runtime: Mapping[str, Any]) -> Mapping[str, Any]:
    return runtime["spec"].get("mlPolicy") or {}


def merged_resources(declared: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return requests and limits of a runtime's container with those of a TrainJob."""
    return {kind: {**declared.get(kind, {}), **asked.get(kind, {})} for kind in ("requests", "limits")}


def _requests_of(resources: Mapping[str, Any]) -> dict[str, str]:
    """Return a container's requests; what has only a limit requests as much."""
    return {**resources.get("limits", {}), **resources.get("requests", {})}


def trainer_of(runtime: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]:
    """Return a runtime's JobSet, its job of the nodes, and their container.

    Raises:
        RunError: it has no such job or container (64).
    """
    name, jobset = runtime["metadata"]["name"], runtime["spec"]["template"]["spec"]
    job = _job(jobset, "trainer")
    if job is None:
        raise RunError(ExitCode.USAGE, f"runtime {name} has no job with the label {_ANCESTOR}: trainer; add it")
    return jobset, job, _named(job["template"]["spec"]["template"]["spec"].get("containers", ()), _CONTAINER, name)


def _name_of(metadata: Mapping[str, Any]) -> str:
    """Return a TrainJob's name; with generateName, a name such as the API server would generate."""
    if not metadata.get("name") and metadata.get("generateName"):
        return f"{metadata['generateName']}{_GENERATED}"
    return str(metadata["name"])


def rewritten(text: str, folders: Mapping[str, str]) -> str:
    """Replace mount paths in a text by local folders: only whole path components, the longest mount first."""
    if not folders:
        return text
    mounts = "|".join(re.escape(path) for path in sorted(folders, key=len, reverse=True))
    return re.sub(rf"(?<![\w./-])({mounts})(?=/|$|[^\w.-])", lambda match: folders[match[1]], text)


def _expect_kind(resource: Mapping[str, Any], kinds: Sequence[str]) -> None:
    if resource.get("kind") not in kinds:
        raise RunError(ExitCode.USAGE, f"a resource of kind {resource.get('kind')!r} was given: give a {kinds[0]}")


def _expect_fields(where: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    for name, _ in given.items():
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
            advice = f"did you mean {close[0]}?" if close else f"its fields are {', '.join(known)}"
            raise RunError(ExitCode.USAGE, f"{where} of the TrainJob has no field {name!r}: {advice}")


def _count(field: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RunError(ExitCode.USAGE, f"{field} of the TrainJob is {value!r}: it must be a whole number, 1 or more")
    return value


def _expect_strings(field: str, words: Sequence[Any]) -> None:
    for word in words:
        if not isinstance(word, str):
            text = str(word).lower() if isinstance(word, bool) else word
            raise RunError(
                ExitCode.USAGE,
                f"{field} of the TrainJob or its runtime has {text}, but Kubernetes accepts only text there: "
                f'write "{text}"',
            )


def _job(jobset: Mapping[str, Any], ancestor: str) -> Mapping[str, Any] | None:
    """Return the job with this ancestor label, None without one."""
    for job in jobset["replicatedJobs"]:
        if job["template"].get("metadata", {}).get("labels", {}).get(_ANCESTOR) == ancestor:
            found: Mapping[str, Any] = job
            return found
    return None


def _named(items: Sequence[Mapping[str, Any]], name: str, runtime: str) -> Mapping[str, Any]:
    for item in items:
        if item.get("name") == name:
            return item
    job = "trainer" if name == _CONTAINER else name
    raise RunError(ExitCode.USAGE, f"the {job} job of runtime {runtime} has no container named {name}: add it")


def _merged_env(
    runtime: Sequence[Mapping[str, Any]], trainjob: Sequence[Mapping[str, Any]]
) -> tuple[Mapping[str, Any], ...]:
    # Merges by name and in place; new names go to the end (pkg/apply: UpsertEnvVars).
    merged = {entry["name"]: entry for entry in runtime}
    merged.update({entry["name"]: entry for entry in trainjob})
    return tuple(merged.values())
