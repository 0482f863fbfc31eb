"""Reads the Kubernetes resources that a user gives: from a file, from standard input, or from the cluster."""

from __future__ import annotations

import difflib
import json
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from stoker.cluster.kubernetes_yaml import read_kubernetes_yaml
from stoker.contract.exits import ExitCode, RunError
from stoker.contract.strict_yaml import not_yaml

Resource = Mapping[str, Any]

RUNTIME_KINDS = ("ClusterTrainingRuntime", "TrainingRuntime")
# kubectl gets the full name, because another API group may have a kind of the same name.
_GROUP = "trainer.kubeflow.org"
_KUBECTL_SECONDS = 30


def read_resources(path: Path) -> list[Resource]:
    """Return the resources of a file, those inside a `kind: List` too; `-` is standard input.

    Raises:
        RunError: the file cannot be read (66), or is not YAML (64).
    """
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        documents = read_kubernetes_yaml(text)
    except OSError as error:
        raise RunError(ExitCode.NO_INPUT, f"{path} cannot be read ({error.strerror}): correct the path") from error
    except (yaml.YAMLError, ValueError) as error:
        # ValueError: text that is not UTF-8, or a value that its tag does not fit, such as `!!int x`.
        raise RunError(ExitCode.USAGE, not_yaml(path, error)) from error
    found: list[Resource] = []
    for document in documents:
        if isinstance(document, dict):
            items = document.get("items")
            found += [document] if not isinstance(items, list) else [item for item in items if isinstance(item, dict)]
    return found


def of_kind(resources: Iterable[Resource], *kinds: str) -> list[Resource]:
    """Return the resources of these kinds."""
    return [resource for resource in resources if resource.get("kind") in kinds]


def name_of(resource: Resource) -> str:
    """Return a resource's name as text; empty if it has none."""
    metadata = resource.get("metadata")
    return str(metadata.get("name") or "") if isinstance(metadata, dict) else ""


def volume_folders(known: Collection[str], volumes: Iterable[str]) -> dict[str, Path]:
    """Return the local folders to use as volumes of a job's pods, by the volume's name.

    Args:
        known: names of the volumes of its pods.
        volumes: `NAME=DIR`, from the command line.

    Raises:
        RunError: the pods have no such volume (64), or the folder does not exist (66).
    """
    folders = {}
    for text in volumes:
        name, equals, folder = text.partition("=")
        if not equals or name not in known:
            raise RunError(
                ExitCode.USAGE,
                f"--volume {text}: write NAME=DIR, where NAME is a volume of the pod: {', '.join(sorted(known))}",
            )
        if not folder or not Path(folder).is_dir():
            raise RunError(ExitCode.NO_INPUT, f"--volume {text}: the folder {folder} does not exist: create it")
        folders[name] = Path(folder).resolve()
    return folders


def trainjobs_of(resources: Sequence[Resource], path: Path) -> list[Resource]:
    """Return the TrainJobs of a file.

    Raises:
        RunError: the file has none (64).
    """
    found = of_kind(resources, "TrainJob")
    if not found:
        misspelled = _misspelled("TrainJob", (resource.get("kind") for resource in resources))
        if misspelled is not None:
            raise RunError(
                ExitCode.USAGE, f"{path} has kind {misspelled!r}, which does not exist: write `kind: TrainJob`"
            )
        raise RunError(ExitCode.USAGE, f"{path} has no TrainJob: give a file with `kind: TrainJob`")
    return found


def _misspelled(wanted: str, given: Iterable[object]) -> str | None:
    """Return what was probably meant to be a kind or field that is missing; None without such a word."""
    words = {str(word).lower(): str(word) for word in given}
    close = difflib.get_close_matches(wanted.lower(), words, n=1, cutoff=0.75)
    return words[close[0]] if close else None


def runtime_of(trainjob: Resource, known: Sequence[Resource]) -> Resource:
    """Return the runtime that a TrainJob names: from the files, else from the cluster.

    Args:
        trainjob: the TrainJob.
        known: the runtimes in the files.

    Raises:
        RunError: it names no runtime, or the cluster has none of that name (64); the cluster does not answer (69).
    """
    spec = trainjob.get("spec")
    reference = spec.get("runtimeRef") if isinstance(spec, dict) else None
    if not isinstance(reference, dict) or not isinstance(reference.get("name"), str):
        raise RunError(ExitCode.USAGE, f"the TrainJob names no runtime: {_how_to_name_one(trainjob)}")
    kind = str(reference.get("kind") or RUNTIME_KINDS[0])
    for runtime in known:
        if name_of(runtime) == reference["name"] and runtime["kind"] == kind:
            return runtime
    if kind not in RUNTIME_KINDS:
        raise RunError(ExitCode.USAGE, f"spec.runtimeRef.kind is {kind!r}: write one of {', '.join(RUNTIME_KINDS)}")
    namespace = trainjob["metadata"].get("namespace") if isinstance(trainjob.get("metadata"), dict) else None
    try:
        return _runtime_from_cluster(kind, reference["name"], str(namespace) if namespace else None)
    except RunError as error:
        raise RunError(error.code, error.message + _advice(reference["name"], known)) from error


def _how_to_name_one(trainjob: Resource) -> str:
    """Return how a TrainJob names its runtime, or which field on the way there is misspelled."""
    inner: Any = trainjob
    path = ""
    for name in ("spec", "runtimeRef", "name"):
        if not isinstance(inner, dict):
            break
        if name not in inner and (misspelled := _misspelled(name, inner)) is not None:
            return f"write {path}{name} instead of {path}{misspelled}"
        inner = inner.get(name)
        path += f"{name}."
    return "write spec.runtimeRef.name"


def _advice(wanted: str, known: Sequence[Resource]) -> str:
    """Return what to try instead of a runtime that is in no file: the nearest name in the files."""
    names = {str(name_of(runtime)): runtime["kind"] for runtime in known}
    if wanted in names:
        return f". In the files, {wanted} is a {names[wanted]}: to use that one, write spec.runtimeRef.kind"
    close = difflib.get_close_matches(wanted, names, n=1)
    return f". The files have {close[0]}: to use that one, correct spec.runtimeRef.name" if close else ""


def _runtime_from_cluster(kind: str, name: str, namespace: str | None) -> Resource:
    """Return a runtime from the cluster that `kubectl` uses.

    Raises:
        RunError: kubectl is not installed, or the cluster has no such runtime (64); the cluster does not answer (69).
    """
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise RunError(
            ExitCode.USAGE,
            f"runtime {name!r} is in none of the files: give its file with --runtime FILE (`helm template` prints it), "
            "or put kubectl on the PATH to read it from your cluster",
        )
    where = ["--namespace", namespace] if namespace and kind == "TrainingRuntime" else []
    command = [kubectl, "get", f"{kind.lower()}.{_GROUP}", name, "--output=json", "--request-timeout=10s", *where]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_KUBECTL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RunError(ExitCode.UNAVAILABLE, f"kubectl did not answer: {error}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines()
        reason = said[-1] if said else f"exit code {done.returncode}"
        missing = "NotFound" in reason or "not found" in reason
        raise RunError(
            ExitCode.USAGE if missing else ExitCode.UNAVAILABLE,
            f"runtime {name!r} is in none of the files, and kubectl could not read it from the cluster ({reason}): "
            + (
                "correct spec.runtimeRef, or give its file with --runtime FILE"
                if missing
                else "give its file with --runtime FILE"
            ),
        )
    try:
        found = json.loads(done.stdout)
    except ValueError as error:
        raise RunError(ExitCode.UNAVAILABLE, f"kubectl did not answer with JSON: {error}") from error
    return found if isinstance(found, dict) else {}
