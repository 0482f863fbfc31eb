"""TrainJobs and runtimes as the tests of every suite write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]

RUNTIME_FILE = Path(__file__).parents[1] / "examples/runtimes/trl-distributed-cpu.yaml"
RUNTIME: Manifest = yaml.safe_load(RUNTIME_FILE.read_text())
"""Our rendered runtime for CPUs, named `trl-distributed`."""
MANAGER = "stoker.dev/tests"
GRPO = ["--model_name_or_path=/opt/tiny", "--dataset_name=org/data", "--reward_funcs=think_format_reward"]
"""Flags with which a TrainJob of `trl-grpo-async` is valid, for the image may have that model."""


def trainjob(
    name: str = "sft",
    *,
    runtime: str = "trl-distributed",
    kind: str | None = None,
    with_trainer: bool = True,
    spec: Mapping[str, Any] | None = None,
    **trainer: Any,
) -> Manifest:
    """Return a TrainJob.

    Args:
        name: its name.
        runtime: the runtime's name.
        kind: the runtime's kind; None leaves it out.
        with_trainer: False leaves spec.trainer out, which is something else than an empty one.
        spec: fields of its spec, in the place of those made from the other arguments.
        trainer: fields of spec.trainer.
    """
    reference = {"name": runtime, **({"kind": kind} if kind else {})}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {"runtimeRef": reference, **({"trainer": trainer} if with_trainer else {}), **(spec or {})},
    }


def variables(values: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the `env` of a container or of spec.trainer."""
    return [{"name": name, "value": value} for name, value in values.items()]


def job_of_pod(name: str, **pod: Any) -> Manifest:
    """Return a replicated job, of a runtime or of a patch, by fields of its pod's spec."""
    return {"name": name, "template": {"spec": {"template": {"spec": pod}}}}


def patches(*jobs: Mapping[str, Any]) -> Manifest:
    """Return a TrainJob's spec that patches replicated jobs of its runtime."""
    spec = {"template": {"spec": {"replicatedJobs": [*jobs]}}}
    return {"runtimePatches": [{"manager": MANAGER, "trainingRuntimeSpec": spec}]}


def container_patch(job: str = "node", **container: Any) -> Manifest:
    """Return a TrainJob's spec that patches one container of a replicated job."""
    return patches(job_of_pod(job, containers=[container]))


def replicated_jobs(runtime: Manifest) -> list[Manifest]:
    """Return a runtime's replicated jobs, to be looked at or changed."""
    found: list[Manifest] = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    return found


def pod_of(job: Manifest) -> Manifest:
    """Return the spec of a replicated job's pod."""
    found: Manifest = job["template"]["spec"]["template"]["spec"]
    return found


def container(runtime: Manifest) -> Manifest:
    """Return the trainer's container of a runtime without initializers."""
    found: Manifest = pod_of(replicated_jobs(runtime)[0])["containers"][0]
    return found


def kept(runtime: Manifest, *volumes: str) -> Manifest:
    """Return a runtime whose workspace is a claim that exists: only the cluster knows what is in it.

    Args:
        runtime: a runtime with a claim of its own for each TrainJob.
        volumes: more claims that exist, each mounted at the folder of its name.
    """
    made = deepcopy(runtime)
    made["spec"]["template"]["spec"].pop("volumeClaimPolicies", None)
    claims = [
        {"name": name, "persistentVolumeClaim": {"claimName": f"our-{name}"}} for name in (*volumes, "initializer")
    ]
    for job in replicated_jobs(made):
        pod = pod_of(job)
        pod["volumes"] = [*pod.get("volumes", ()), *claims]
    container(made)["volumeMounts"] += [{"name": name, "mountPath": f"/{name}"} for name in volumes]
    return made


def renamed(name: str, framework: str) -> Manifest:
    """Return our runtime under another name, with another framework's label."""
    made = deepcopy(RUNTIME)
    labels = {**made["metadata"]["labels"], "trainer.kubeflow.org/framework": framework}
    made["metadata"].update(name=name, labels=labels)
    return made


def gpu_runtime(**env: str) -> Manifest:
    """Return our runtime with two NVIDIA GPUs a pod, a workspace that exists, and these variables."""
    runtime = kept(RUNTIME)
    node = container(runtime)
    node["image"] = node["image"].removesuffix("-cpu") + "-cuda"
    node["resources"] = {"limits": {"nvidia.com/gpu": 2}, "requests": {"cpu": 8}}
    told = {"STOKER_ACCELERATOR": "nvidia", **env}
    node["env"] = [e for e in node["env"] if e["name"] not in ("STOKER_NPROC_PER_NODE", *told)]
    node["env"] += variables(told)
    return runtime


def with_initializer(job: str, mounts: Sequence[Mapping[str, str]] = (), **container: Any) -> Manifest:
    """Return our runtime with one more job, whose container bears the same name and is not marked as a step."""
    runtime = deepcopy(RUNTIME)
    pod = {"containers": [{"name": job, "volumeMounts": [*mounts], **container}]}
    replicated_jobs(runtime).append(job_of_pod(job, **pod))
    return runtime


def with_initializers(command: Sequence[str] = (), mounts: Sequence[Mapping[str, Any]] = ()) -> Manifest:
    """Return our runtime with the two initializers that Trainer knows.

    Args:
        command: what fetches the model; without one they are as upstream's runtimes have them.
        mounts: further volume mounts of both.
    """
    runtime = deepcopy(RUNTIME)
    for kind in ("dataset", "model"):
        name = f"{kind}-initializer"
        container: Manifest = {
            "name": name,
            "env": variables({"STOKER_WORKSPACE": "/workspace", "STORAGE_URI": ""}),
            "volumeMounts": [{"name": "initializer", "mountPath": "/workspace"}, *mounts],
        }
        if kind == "model" and command:
            container["command"] = [*command]
        job = as_step(job_of_pod(name, containers=[container]))
        job["template"]["spec"]["backoffLimit"] = 1
        replicated_jobs(runtime).append(job)
    return runtime


def as_step(job: Manifest) -> Manifest:
    """Mark a replicated job as the step of a TrainJob that bears its name, and return it."""
    job["template"]["metadata"] = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": job["name"]}}
    return job


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value inside a manifest."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*path, key))
