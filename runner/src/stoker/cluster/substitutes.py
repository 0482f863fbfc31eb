"""What a local run uses instead of a cluster's volumes, images and secrets."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from stoker.cluster.pods import NodeJob, rewritten
from stoker.cluster.resources import volume_folders
from stoker.contract.exits import ExitCode, RunError
from stoker.fetch.request import CLAIMS
from stoker.frameworks import known_frameworks

FETCH = "fetch"
VLLM = "vllm"
_WORKSPACE_VOLUME = "initializer"


@dataclass(frozen=True, slots=True)
class Substitutes:
    """What a local run uses instead of what a cluster gives a job.

    Attributes:
        volumes: volume → folder on this machine.
        pythons: framework, `fetch` for the initializers, or `vllm` for the samplers → the Python that has it.
        secrets: name of a secret → its keys and values.
    """

    volumes: Mapping[str, str]
    pythons: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def folders(self, mounts: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Return mount path → folder for the mounts of a container."""
        return {path: self.volumes[name] for name, paths in mounts.items() if name in self.volumes for path in paths}

    def missing(self, job: NodeJob) -> dict[str, str]:
        """Return volume → mount path of the volumes that a job names but that have no folder here."""
        words = [*job.argv, *(str(entry.get("value") or "") for entry in job.env)]
        return {
            name: path
            for name, paths in job.mounts.items()
            for path in paths
            if name not in self.volumes
            and not Path(path).exists()
            and any(rewritten(word, {path: ""}) != word for word in words)
        }


def substitutes_of(
    jobs: Sequence[NodeJob], workspace: Path, volumes: Sequence[str], pythons: Sequence[str], secrets: Sequence[str]
) -> Substitutes:
    """Return the substitutes that the options describe.

    Args:
        jobs: the job of the nodes, then those of the initializers.
        workspace: folder to use as the workspace volume.
        volumes: `NAME=DIR`.
        pythons: `FRAMEWORK=PATH`.
        secrets: `NAME=FILE`.

    Raises:
        RunError: an option has another form (64), or names a missing file (66).
    """
    names = {*known_frameworks(), jobs[0].framework, FETCH, VLLM}
    return Substitutes(_volumes(jobs, workspace, volumes), _pythons(names, pythons), _secrets(secrets))


def local_uri(uri: str, folders: Mapping[str, str]) -> str:
    """Return the local `file://` URI of a folder in a mounted volume; any other URI unchanged."""
    quoted = {mount: quote(folder) for mount, folder in folders.items()}
    for prefix, root in (("pvc://", f"{CLAIMS}/"), ("file://", "")):
        path = root + uri[len(prefix) :]
        if uri.lower().startswith(prefix) and (local := rewritten(path, quoted)) != path:
            return f"file://{local}"
    return uri


def _volumes(jobs: Sequence[NodeJob], workspace: Path, volumes: Sequence[str]) -> dict[str, str]:
    """Return volume → local folder."""
    given = {_WORKSPACE_VOLUME: workspace, **volume_folders({name for job in jobs for name in job.mounts}, volumes)}
    if _WORKSPACE_VOLUME not in jobs[0].mounts:
        raise RunError(
            ExitCode.USAGE, f"the runtime mounts no volume named {_WORKSPACE_VOLUME}: add one, mounted at the workspace"
        )
    return {name: str(folder.resolve()) for name, folder in given.items()}


def _pythons(names: Collection[str], given: Sequence[str]) -> dict[str, str]:
    """Return framework → Python."""
    found = {}
    for text in given:
        name, equals, python = text.partition("=")
        if not equals or not name:
            raise RunError(ExitCode.USAGE, f"--python {text}: write FRAMEWORK=PATH, such as torchtune=venv/bin/python")
        if name not in names:
            raise RunError(ExitCode.USAGE, f"--python {text}: {name} must be one of {', '.join(sorted(names))}")
        if not os.access(python, os.X_OK) or Path(python).is_dir():
            raise RunError(ExitCode.NO_INPUT, f"--python {text}: {python} is not a program: name a Python")
        # Not resolved: Python finds its virtual environment by this path.
        found[name] = str(Path(python).absolute())
    return found


def _secrets(given: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return secret → its keys and values."""
    found = {}
    for text in given:
        name, equals, file = text.partition("=")
        if not equals or not name:
            raise RunError(ExitCode.USAGE, f"--secret {text}: write NAME=FILE")
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(ExitCode.NO_INPUT, f"--secret {text}: {file} cannot be read: correct the path") from error
        pairs = [line.partition("=") for line in lines if line.strip() and not line.startswith("#")]
        if wrong := [key for key, sign, _ in pairs if not sign or not key.isidentifier()]:
            raise RunError(
                ExitCode.USAGE, f"--secret {text}: {wrong[0][:20]!r} is not KEY=VALUE: write a variable in each line"
            )
        found[name] = {key: value for key, _, value in pairs}
    return found
