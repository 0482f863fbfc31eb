"""What the volumes of a TrainJob's pods hold when its nodes start, as far as anybody can know before. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any

from stoker.cluster.patches import patched
from stoker.cluster.pods import quantity, trainer_of
from stoker.cluster.schema import shape_errors, without_nulls

# Sources of volumes that are empty in every new pod.
_NEW = ("emptyDir", "ephemeral")
# The working directory of Stoker's images.
_WORKING_DIR = "/workspace"
_SHM = "/dev/shm"
# What container engines give where no volume is mounted.
_DEFAULT_SHM_BYTES = 64 * 2**20
_READ_ONLY = ("configMap", "secret", "projected", "downwardAPI", "image")
# Folders that an image's system fills. Elsewhere, Stoker's images hold nothing.
_SYSTEM = ("bin", "dev", "etc", "lib", "lib64", "opt", "proc", "run", "sbin", "sys", "usr", "var")


class PathFacts(Enum):
    """What is known of a path before a run starts."""

    MISSING = "missing"
    FETCHED = "fetched"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class _Mount:
    """A volume in the node's container.

    Attributes:
        path: where it is mounted.
        volume: its name.
        is_new: True if it is empty in every new run, but for what initializers fetch.
        is_writable: False if nothing can be written there.
    """

    path: PurePosixPath
    volume: str
    is_new: bool
    is_writable: bool


@dataclass(frozen=True, slots=True)
class Volumes:
    """The filesystem of a node's container before the start.

    Attributes:
        mounts: its volumes.
        fetched: path in the container → the initializer that fetches it, as the user writes its field.
        is_root_writable: False if the container's own filesystem is read-only.
        is_image_known: True for an image of Stoker.
        working_dir: the folder in which its process starts; None if that is not known.
        shm_bytes: size of /dev/shm; None if only the cluster knows it.
    """

    mounts: tuple[_Mount, ...]
    fetched: Mapping[PurePosixPath, str]
    is_root_writable: bool
    is_image_known: bool
    working_dir: str | None
    shm_bytes: int | None

    def absolute(self, path: str) -> str:
        """Return a path as seen from the container's working directory; unchanged if that is not known."""
        return path if self.working_dir is None else str(PurePosixPath(self.working_dir, path))

    def look(self, path: str) -> tuple[PathFacts, str]:
        """Return what is known of a path, and why, as the end of a sentence about it."""
        wanted = PurePosixPath(normpath(self.absolute(path)))
        if not wanted.is_absolute():
            return PathFacts.UNKNOWN, "in the image's working directory"
        for folder, initializer in self.fetched.items():
            if wanted.is_relative_to(folder):
                return PathFacts.FETCHED, f"which {initializer} fetches"
        mount = self._mount_of(wanted)
        if mount is None:
            is_parent = any(other.path.is_relative_to(wanted) for other in self.mounts)
            if self.is_image_known and not is_parent and wanted.parts[1:2] and wanted.parts[1] not in _SYSTEM:
                return PathFacts.MISSING, "no volume is mounted there"
            return PathFacts.UNKNOWN, "in the image"
        has_more = any(folder.is_relative_to(wanted) for folder in (mount.path, *self.fetched))
        if mount.is_new and not has_more:
            return PathFacts.MISSING, f"the volume {mount.volume} at {mount.path} is empty when the run starts"
        return PathFacts.UNKNOWN, f"in the volume {mount.volume}"

    def refusal(self, path: str) -> str | None:
        """Return why nothing can be written to an absolute path, and what to do; None if that is not known."""
        mount = self._mount_of(PurePosixPath(normpath(path)))
        advice = "choose a folder in the workspace, or mount a volume there that this pod can write to"
        if mount is None and not self.is_root_writable:
            return f"no volume is mounted there, and the container's own filesystem is read-only: {advice}"
        if mount is not None and not mount.is_writable:
            return f"the volume {mount.volume} is read-only: {advice}"
        return None

    def _mount_of(self, path: PurePosixPath) -> _Mount | None:
        found = [mount for mount in self.mounts if path.is_relative_to(mount.path)]
        return max(found, key=lambda mount: len(mount.path.parts), default=None)


def volumes_of(
    trainjob: Mapping[str, Any], runtime: Mapping[str, Any], fetching: Mapping[str, str | None], is_image_known: bool
) -> Volumes:
    """Return the volumes of a TrainJob's nodes.

    Args:
        trainjob: a TrainJob.
        runtime: its runtime.
        fetching: job of an initializer → the folder that it fetches to, in its own container; empty if it fetches
            nothing, and None if that is not known.
        is_image_known: whether the nodes' image is one of Stoker's.

    Raises:
        RunError: the two do not fit, or one is invalid (64).
    """
    with shape_errors():
        return _volumes_of(patched(without_nulls(trainjob), runtime), fetching, is_image_known)


def claims_of_two_volumes(trainjob: Mapping[str, Any], runtime: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with pods that mount one claim as two volumes.

    The kubelet waits for the second volume for ever, without an event (kubernetes/kubernetes#127004).

    Args:
        trainjob: a TrainJob.
        runtime: its runtime.

    Raises:
        RunError: the two do not fit, or one is invalid (64).
    """
    with shape_errors():
        jobset, _, _ = trainer_of(patched(without_nulls(trainjob), runtime))
        return [
            f"the pods of job {job['name']} mount claim {claim} as the volumes {' and '.join(names)}, and Kubernetes "
            "never starts such pods: keep one of these volumes, and mount it at each path"
            for job in jobset["replicatedJobs"]
            for claim, names in volumes_of_claims(job["template"]["spec"]["template"]["spec"]).items()
            if len(names) > 1
        ]


def volumes_of_claims(pod: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return of each claim that a pod's volumes name the volumes that are mounted.

    Args:
        pod: its spec.
    """
    mounted = {str(mount["name"]) for mount in _mounts(pod)}
    found: dict[str, list[str]] = {}
    for volume in pod.get("volumes", ()):
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        if claim is not None and volume["name"] in mounted:
            found.setdefault(str(claim), []).append(str(volume["name"]))
    return found


def _volumes_of(runtime: Mapping[str, Any], fetching: Mapping[str, str | None], is_image_known: bool) -> Volumes:
    jobset, node, container = trainer_of(runtime)
    pods = {str(job["name"]): job["template"]["spec"]["template"]["spec"] for job in jobset["replicatedJobs"]}
    pod = pods.pop(str(node["name"]))
    claims = {str(t["metadata"]["name"]) for p in jobset.get("volumeClaimPolicies", ()) for t in p.get("templates", ())}
    writers = {name for job, other in pods.items() if fetching.get(job) is None for name in _written(other)}
    beside = {*_written(pod, without=container)}
    mounts, fetched = [], {}
    for mount in container.get("volumeMounts", ()):
        name, path = str(mount["name"]), PurePosixPath(mount["mountPath"])
        source = _source_of(pod, name)
        is_claim = source is None and name in claims
        is_new = (is_claim and name not in writers) or any(kind in (source or {}) for kind in _NEW)
        mounts.append(_Mount(path, name, is_new and name not in beside, not _is_read_only(mount, source)))
        for job, folder in fetching.items() if is_claim else ():
            for other in _mounts(pods.get(job, {})):
                target, there = PurePosixPath(folder or ""), other["mountPath"]
                if str(other["name"]) == name and target.is_relative_to(there):
                    fetched[path / target.relative_to(there)] = f"spec.initializer.{job.removesuffix('-initializer')}"
    context = container.get("securityContext") or {}
    return Volumes(
        mounts=tuple(mounts),
        fetched=fetched,
        is_root_writable=not context.get("readOnlyRootFilesystem"),
        is_image_known=is_image_known,
        working_dir=container.get("workingDir") or (_WORKING_DIR if is_image_known else None),
        shm_bytes=_shm_bytes(pod, container),
    )


def _shm_bytes(pod: Mapping[str, Any], container: Mapping[str, Any]) -> int | None:
    """Return the size of /dev/shm in a container; None if only the cluster knows it."""
    for mount in container.get("volumeMounts", ()):
        if normpath(mount["mountPath"]) == _SHM:
            memory = ((_source_of(pod, mount["name"]) or {}).get("emptyDir") or {}) if "name" in mount else {}
            if memory.get("medium") != "Memory" or "sizeLimit" not in memory:
                return None
            # The kubelet gives it no more than the memory of the pod.
            limits = [(c.get("resources") or {}).get("limits", {}).get("memory") for c in pod.get("containers", ())]
            sizes = [quantity(limit) for limit in limits if limit is not None]
            size = quantity(memory["sizeLimit"])
            return int(min(size, sum(sizes)) if len(sizes) == len(limits) else size)
    return _DEFAULT_SHM_BYTES


def _source_of(pod: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """Return a volume of a pod; None if the pod's spec has none of that name."""
    return next((volume for volume in pod.get("volumes", ()) if volume.get("name") == name), None)


def _is_read_only(mount: Mapping[str, Any], source: Mapping[str, Any] | None) -> bool:
    found = source or {}
    claim = found.get("persistentVolumeClaim") or {}
    return bool(mount.get("readOnly") or claim.get("readOnly") or any(kind in found for kind in _READ_ONLY))


def _written(pod: Mapping[str, Any], without: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Yield the volumes that the containers of a pod can write to."""
    for mount in _mounts(pod, without):
        name = str(mount["name"])
        if not _is_read_only(mount, _source_of(pod, name)):
            yield name


def _mounts(pod: Mapping[str, Any], without: Mapping[str, Any] | None = None) -> Iterator[Mapping[str, Any]]:
    """Yield each mount in the containers of a pod."""
    for kind in ("initContainers", "containers"):
        for container in pod.get(kind, ()):
            if container is not without:
                yield from container.get("volumeMounts", ())
