"""What a pod of a TrainJob would find, as far as it is known before the start. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from stoker.cluster.pods import NodeJob, quantity
from stoker.contract.variables import kept_variables
from stoker.plan.devices import hidden_by, left_visible
from stoker.plan.facts import Facts, whole_number
from stoker.plan.world import DEFAULT_PORT, yields

# Partitions of an NVIDIA GPU, of which CUDA gives a process one.
_PARTITIONS = "nvidia.com/mig-"
# Extended resources whose count is the number of devices, by the accelerator profile: a name, or how one begins if it
# ends with a sign.
_RESOURCES = {
    # Not all of a vendor's: network operators offer RDMA devices, and device plugins shares of memory, there too.
    "nvidia": ("nvidia.com/gpu", _PARTITIONS),
    "amd": ("amd.com/gpu", *(f"amd.com/{mode}_" for mode in ("spx", "dpx", "tpx", "qpx", "cpx"))),
    "intel": ("gpu.intel.com/i915", "gpu.intel.com/xe", "habana.ai/gaudi"),
    "tpu": ("google.com/tpu",),
}
# Sources of a variable that only the cluster can read. Of a pod's fields, only its labels and annotations are known.
_UNSEEN = ("secretKeyRef", "configMapKeyRef", "fileKeyRef")
_KNOWN_FIELDS = ("metadata.labels['", "metadata.annotations['")


def assumed_facts(job: NodeJob, environment: Mapping[str, str], shm_bytes: int | None = None) -> Facts:
    """Return the facts that a node's container would find, with the devices it requests.

    Args:
        job: what the nodes run.
        environment: the environment of this node's container.
        shm_bytes: size of its /dev/shm; None if it is not known.
    """
    accelerator = environment.get("STOKER_ACCELERATOR") or "nvidia"
    count = _requested(job, _RESOURCES.get(accelerator, ()))
    if job.claims:
        # A claim asks for one device per process of the runtime.
        count = max(count, whole_number(environment.get("STOKER_NPROC_PER_NODE", "")) or 1)
    mounted = tuple(f"{accelerator}{index}" for index in range(count))
    facts = Facts(
        env=kept_variables(environment),
        devices=left_visible(accelerator, mounted, environment),
        hidden_by=hidden_by(accelerator, mounted, environment),
        cpus=max(1, math.ceil(quantity(job.resources.get("cpu", "1")))),
        shm_bytes=shm_bytes,
    )
    if job.injected and job.processes is None and yields(facts):
        # Unlike a pod, we know that Trainer chose this number, not the user: there is nothing to note.
        return replace(facts, env={**facts.env, "PET_NPROC_PER_NODE": "auto"})
    return facts


def partition_problem(job: NodeJob, accelerator: str) -> str:
    """Return why a node's processes could not use all partitions of GPUs that it requests; empty if they could."""
    count = _requested(job, (_PARTITIONS,)) if accelerator == "nvidia" else 0
    if count < 2:
        return ""
    return (
        f"the pods ask for {count} partitions of a GPU, and a process can use only one: request one, or whole devices "
        "(nvidia.com/gpu)"
    )


def _requested(job: NodeJob, known: tuple[str, ...]) -> int:
    """Return how many devices a node requests of these resources."""
    amounts = {**job.resources, **job.limits}
    return sum(
        int(quantity(amount)) for name, amount in amounts.items() if any(_is_of(name, resource) for resource in known)
    )


def _is_of(name: str, known: str) -> bool:
    """Return whether a resource is a known one, or such a one shared, as `nvidia.com/gpu.shared` is."""
    return name == known or name.startswith(known if known[-1] in "-_" else f"{known}.")


def environment_of(job: NodeJob, node: int) -> dict[str, str]:
    """Return the environment of a node's container.

    Raises:
        RunError: the TrainJob or its runtime is invalid (64), or a variable comes from the cluster (78).
    """
    address = f"{job.name}-node-0-0.{job.name}"
    environment = job.environment(node, 0, "job", "run", address, DEFAULT_PORT)
    # Kubernetes sets this in every pod of an Indexed Job.
    return {**environment, "JOB_COMPLETION_INDEX": str(node)}


def without_unseen(job: NodeJob) -> tuple[NodeJob, list[str]]:
    """Return a job without the variables whose values only the cluster has, and their names."""
    unseen = [str(entry["name"]) for entry in job.env if _is_unseen(entry.get("valueFrom"))]
    return replace(job, env=tuple(entry for entry in job.env if entry["name"] not in unseen)), unseen


def _is_unseen(source: object) -> bool:
    if not isinstance(source, dict):
        return False
    field = source.get("fieldRef")
    path = str(field.get("fieldPath")) if isinstance(field, dict) else _KNOWN_FIELDS[0]
    return bool(set(_UNSEEN) & {*source}) or not source or not path.startswith(_KNOWN_FIELDS)
