"""The containers of a TrainJob, as Kubeflow Trainer, JobSet and Kubernetes would start them, with local folders.

Written beside `stoker.cluster.pods` and not with it, so that what both must say alike is said twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builders import pod_of, replicated_jobs
from stoker.cluster.images import packages_of
from stoker.cluster.pods import job_of

Manifest = dict[str, Any]

_CPUS = 16
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_FACTORS = {"": 1.0, "m": 0.001, "G": 1e9, "Mi": 2.0**20, "Gi": 2.0**30}
_QUANTITY = re.compile(r"^([0-9.]+)(|m|G|Mi|Gi)$")
# Resource → the nodes below /dev of so many devices, as `Machine` has them.
_DEVICES = {
    "nvidia.com/": ("nvidia{0}",),
    "amd.com/": ("kfd", "dri/renderD{1}"),
    "gpu.intel.com/": ("accel/accel{0}",),
    "google.com/tpu": ("accel{0}",),
}
_BY_KIND = {"nvidia": "nvidia.com/", "amd": "amd.com/", "intel": "gpu.intel.com/", "tpu": "google.com/tpu"}


@dataclass
class Container:
    """A container to be played.

    Attributes:
        argv: its command and arguments.
        env: its environment.
        machine: what it sees of its node.
        packages: what its image has; None for every package.
        volumes: its folders that are not read-only.
    """

    argv: list[str]
    env: dict[str, str]
    machine: dict[str, Any] = field(default_factory=dict)
    packages: list[str] | None = None
    volumes: list[str] = field(default_factory=list)


def nodes_of(trainjob: Manifest, runtime: Manifest, folder: Path, most: int = 3) -> Iterator[Container]:
    """Yield the containers of a TrainJob's nodes.

    Args:
        trainjob: a TrainJob that the cluster takes.
        runtime: its runtime.
        folder: the folder whose subfolders are the volumes of each pod, by their names.
        most: how many nodes to yield; nodes differ only in their rank.
    """
    spec = trainjob["spec"]
    trainer, (job,) = spec.get("trainer"), [one for one in replicated_jobs(runtime) if _step(one) == "trainer"]
    pod = pod_of(job)
    (main,) = (one for one in pod["containers"] if one["name"] == "node")
    told = trainer or {}
    declared, asked = main.get("resources") or {}, told.get("resourcesPerNode")
    merged = {kind: {**declared.get(kind, {}), **(asked or {}).get(kind, {})} for kind in ("requests", "limits")}
    count = int(told.get("numNodes") or (runtime["spec"].get("mlPolicy") or {}).get("numNodes") or 1)
    processes = _processes(told.get("numProcPerNode"), declared if asked is None else asked)
    argv = [*(told.get("command") or main.get("command", ())), *(told.get("args") or main.get("args", ()))]
    if told.get("command") == ["tune", "run"]:
        # Compared with Trainer's own words by tests/e2e/test_torchtune.py.
        argv = [*job_of(trainjob, runtime).argv]
    labels = job["template"]["spec"]["template"].get("metadata", {}).get("labels", {})
    folders = _folders(main, folder)
    for rank in range(min(count, most)):
        env = _environment([*main.get("env", ()), *told.get("env", ())], labels, merged, str(rank))
        if trainer is not None:
            env |= {"PET_NNODES": str(count), "PET_NPROC_PER_NODE": processes, "PET_NODE_RANK": str(rank)}
        # All pods are on this machine, whose address has no name to wait for.
        env |= {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": "29500", "JOB_COMPLETION_INDEX": str(rank)}
        yield Container(
            [local(_expanded(word, env), folders) for word in argv],
            _local_environment(env, folders, folder),
            {"cpus": _CPUS, "shm_mib": _shm_mib(pod, merged), "devices": _devices(env, merged, declared, asked)},
            _packages(str(told.get("image") or main.get("image") or "")),
            [*folders.values()],
        )


def fetchers_of(trainjob: Manifest, runtime: Manifest, folder: Path) -> Iterator[Container]:
    """Yield the containers that fetch a data set and a model, in this order."""
    asked = trainjob["spec"].get("initializer") or {}
    for kind in ("dataset", "model"):
        for job in replicated_jobs(runtime):
            if _step(job) == f"{kind}-initializer":
                (main,) = pod_of(job)["containers"]
                told = asked.get(kind) or {}
                uri = [{"name": "STORAGE_URI", "value": told["storageUri"]}] if told.get("storageUri") else []
                folders = _folders(main, folder)
                env = _environment([*main.get("env", ()), *told.get("env", ()), *uri], {}, {}, "0")
                argv = [*main.get("command", ("stoker", "fetch", kind)), *main.get("args", ())]
                yield Container(argv, _local_environment(env, folders, folder), volumes=[*folders.values()])


def local(text: str, folders: Mapping[str, str]) -> str:
    """Return a text in which the paths of mounted folders are those of this machine."""
    mounts = "|".join(re.escape(path) for path in sorted(folders, key=len, reverse=True))
    return re.sub(rf"(?<![\w./-])({mounts})(?=/|$|[^\w.-])", lambda found: folders[found[1]], text)


def _step(job: Manifest) -> str:
    return str(job["template"].get("metadata", {}).get("labels", {}).get(_STEP, ""))


def _folders(container: Manifest, folder: Path) -> dict[str, str]:
    """Return mount path → local folder."""
    mounts = {mount["mountPath"]: str(folder / mount["name"]) for mount in container.get("volumeMounts", ())}
    return {path: name for path, name in mounts.items() if path != "/dev/shm"}


def _local_environment(env: Mapping[str, str], folders: Mapping[str, str], folder: Path) -> dict[str, str]:
    there = {name: local(value, folders) for name, value in env.items()}
    return {"PATH": "/usr/bin:/bin", "HOME": str(folder), "STOKER_TERMINATION_LOG": str(folder / "log"), **there}


def _environment(
    entries: Sequence[Manifest], labels: Mapping[str, str], resources: Mapping[str, Mapping[str, Any]], rank: str
) -> dict[str, str]:
    known = {
        **labels,
        "jobset.sigs.k8s.io/jobset-name": "run",
        "jobset.sigs.k8s.io/jobset-uid": "job",
        "jobset.sigs.k8s.io/restart-attempt": "0",
        "batch.kubernetes.io/controller-uid": "attempt",
        "batch.kubernetes.io/job-completion-index": rank,
    }
    values: dict[str, str] = {}
    # A later entry takes the place of an earlier one of its name.
    for entry in {entry["name"]: entry for entry in entries}.values():
        source = entry.get("valueFrom") or {}
        if not source:
            text = _expanded(entry.get("value") or "", values)
        elif "resourceFieldRef" in source:
            kind, _, name = source["resourceFieldRef"]["resource"].partition(".")
            # Without a request the limit counts, and without a limit what the machine has.
            amounts = {**resources.get("limits", {}), **resources.get(kind, {})} if resources else {}
            text = str(math.ceil(_number(amounts.get(name, "0" if kind == "requests" else _CPUS))))
        elif "fieldRef" in source:
            found = re.search(r"\['(.*)'\]$", source["fieldRef"]["fieldPath"])
            text = known.get(found[1], "") if found else "10.0.0.1"
        else:
            text = "from-a-secret"
        values[entry["name"]] = text
    return values


def _expanded(text: str, values: Mapping[str, str]) -> str:
    return re.sub(
        r"\$\$|\$\(([^)]*)\)", lambda found: "$" if found[0] == "$$" else values.get(found[1], found[0]), text
    )


def _processes(asked: Any, counted: Manifest) -> str:
    amounts = {**counted.get("limits", {}), **counted.get("requests", {})}
    if asked is not None:
        return str(int(asked))
    if any("gpu" in name and int(amount) for name, amount in amounts.items()):
        return "auto"
    return str(max(1, math.ceil(_number(amounts.get("cpu", "0")))))


def _number(text: Any) -> float:
    found = _QUANTITY.match(str(text))
    assert found, text
    return float(found[1]) * _FACTORS[found[2]]


def _devices(env: Mapping[str, str], merged: Manifest, declared: Manifest, asked: Manifest | None) -> list[str]:
    amounts = {**merged["requests"], **merged["limits"]}
    if declared.get("claims") or (asked or {}).get("claims"):
        amounts = {_BY_KIND[env["STOKER_ACCELERATOR"]]: env.get("STOKER_NPROC_PER_NODE") or "1"}
    return [
        node.format(number, 128 + number)
        for name, amount in amounts.items()
        for prefix, nodes in _DEVICES.items()
        if name.startswith(prefix)
        for number in range(int(amount))
        for node in nodes
        if "{" in node or number == 0
    ]


def _shm_mib(pod: Manifest, merged: Manifest) -> int:
    sizes = [
        _number(volume["emptyDir"]["sizeLimit"]) for volume in pod.get("volumes", ()) if volume["name"] == "shm"
    ] or [64 * 2.0**20]
    memory = merged["limits"].get("memory")
    return int(min(sizes[0], _number(memory) if memory else sizes[0]) / 2**20)


def _packages(image: str) -> list[str] | None:
    packages = packages_of(image)
    return None if packages is None else sorted(packages)
