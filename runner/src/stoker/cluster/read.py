"""Kubernetes manifests as a user hands them over: a file with one document or many, standard input, or the cluster."""

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

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.strict_yaml import read_manifests

Manifest = Mapping[str, Any]

RUNTIME_KINDS = ("ClusterTrainingRuntime", "TrainingRuntime")
# By its full name, so that no other API group's kind of the same name is asked for.
_GROUP = "trainer.kubeflow.org"
_KUBECTL_SECONDS = 30


def read_documents(path: Path) -> list[Manifest]:
    """Return the YAML documents of a file, lists (`kind: List`) taken apart; `-` is standard input.

    Raises:
        RunError: it cannot be read (66) or is no YAML (64).
    """
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        documents = read_manifests(text)
    except OSError as error:
        raise RunError(ExitCode.NO_INPUT, f"{path} cannot be read ({error.strerror}): correct the path") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: text that is not UTF-8, a number of thousands of digits, a NUL in the path.
        raise RunError(ExitCode.USAGE, f"{path} is no YAML: {' '.join(str(error).split())}") from error
    found: list[Manifest] = []
    for document in documents:
        if isinstance(document, dict):
            items = document.get("items")
            found += [document] if not isinstance(items, list) else [item for item in items if isinstance(item, dict)]
    return found


def of_kind(documents: Iterable[Manifest], *kinds: str) -> list[Manifest]:
    """Return the documents of these kinds."""
    return [document for document in documents if document.get("kind") in kinds]


def name_of(manifest: Manifest) -> str:
    """Return a manifest's name as text; empty if it has none."""
    metadata = manifest.get("metadata")
    return str(metadata.get("name") or "") if isinstance(metadata, dict) else ""


def volume_folders(known: Collection[str], volumes: Iterable[str]) -> dict[str, Path]:
    """Return the local folders that stand for volumes of a job's pods, by the volume's name.

    Args:
        known: names of the volumes that its pods have.
        volumes: `NAME=DIR`, as options give them.

    Raises:
        RunError: the pods have no such volume (64), or there is no such folder (66).
    """
    folders = {}
    for text in volumes:
        name, equals, folder = text.partition("=")
        if not equals or name not in known:
            raise RunError(
                ExitCode.USAGE,
                f"--volume {text}: write NAME=DIR, NAME one of the pod's volumes: {', '.join(sorted(known))}",
            )
        if not folder or not Path(folder).is_dir():
            raise RunError(ExitCode.NO_INPUT, f"--volume {text}: there is no folder {folder}")
        folders[name] = Path(folder).resolve()
    return folders


def trainjobs_of(documents: Sequence[Manifest], path: Path) -> list[Manifest]:
    """Return the TrainJobs among the documents of a file.

    Raises:
        RunError: there is none (64).
    """
    found = of_kind(documents, "TrainJob")
    if not found:
        raise RunError(ExitCode.USAGE, f"{path} holds no TrainJob: give a manifest with `kind: TrainJob`")
    return found


def runtime_of(trainjob: Manifest, known: Sequence[Manifest]) -> Manifest:
    """Return the runtime that a TrainJob refers to: of those that are known, else as the cluster has it.

    Raises:
        RunError: it names none, or the cluster has none of that name (64); the cluster does not answer (69).
    """
    spec = trainjob.get("spec")
    reference = spec.get("runtimeRef") if isinstance(spec, dict) else None
    if not isinstance(reference, dict) or not isinstance(reference.get("name"), str):
        raise RunError(ExitCode.USAGE, "the TrainJob names no runtime: write spec.runtimeRef.name")
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


def _advice(wanted: str, known: Sequence[Manifest]) -> str:
    """Return what to try instead of a runtime that is in none of the files: the nearest that is."""
    names = {str(name_of(runtime)): runtime["kind"] for runtime in known}
    if wanted in names:
        return f". In the files {wanted} is a {names[wanted]}: if that is meant, write spec.runtimeRef.kind"
    close = difflib.get_close_matches(wanted, names, n=1)
    return f". The files have {close[0]}: if that is meant, correct spec.runtimeRef.name" if close else ""


def _runtime_from_cluster(kind: str, name: str, namespace: str | None) -> Manifest:
    """Return a runtime from the cluster that `kubectl` speaks to.

    Raises:
        RunError: there is no kubectl, or the cluster has no such runtime (64); the cluster does not answer (69).
    """
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise RunError(
            ExitCode.USAGE,
            f"runtime {name!r} is in none of the files: give its manifest with --runtime FILE (`helm template` prints "
            "it), or put kubectl on the PATH to have it read from your cluster",
        )
    where = ["--namespace", namespace] if namespace and kind == "TrainingRuntime" else []
    command = [kubectl, "get", f"{kind.lower()}.{_GROUP}", name, "--output=json", "--request-timeout=10s", *where]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_KUBECTL_SECONDS)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise RunError(ExitCode.UNAVAILABLE, f"kubectl did not answer: {error}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines()
        reason = said[-1] if said else f"exit code {done.returncode}"
        missing = "NotFound" in reason or "not found" in reason
        raise RunError(
            ExitCode.USAGE if missing else ExitCode.UNAVAILABLE,
            f"runtime {name!r} is in none of the files, and kubectl could not read it from the cluster ({reason}): "
            + (
                "correct spec.runtimeRef, or give its manifest with --runtime FILE"
                if missing
                else "give --runtime FILE"
            ),
        )
    try:
        found = json.loads(done.stdout)
    except ValueError as error:
        raise RunError(ExitCode.UNAVAILABLE, f"kubectl answered something that is no JSON: {error}") from error
    return found if isinstance(found, dict) else {}
