"""The result of a finished run: what its folder holds, and which base model it belongs to. Loads no tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import read_json
from stoker.contract.manifest import MANIFEST, changed_files, manifest_flaws, unfinished
from stoker.serve.adapters.check import is_hub_name, misfits
from stoker.serve.adapters.files import read_adapter, read_base_model


@dataclass(frozen=True, slots=True)
class Result:
    """A run's result.

    Attributes:
        path: its folder.
        manifest: what the run says of it.
    """

    path: Path
    manifest: Mapping[str, Any]

    @property
    def is_adapter(self) -> bool:
        """Whether it is an adapter, and not a whole model."""
        return self.manifest.get("adapter") is not None

    @property
    def is_classifier(self) -> bool:
        """Whether the model scores texts, as reward models do, and does not write them."""
        return self.manifest.get("method") == "reward"

    @property
    def files(self) -> list[str]:
        """The names of its files that are there, with the manifest last: whoever sees that has the others."""
        listed = [str(entry["path"]) for entry in self.manifest["files"]]
        return [*(name for name in listed if (self.path / name).is_file()), MANIFEST]


@dataclass(frozen=True, slots=True)
class AdapterBase:
    """The base model of an adapter.

    Attributes:
        name: its folder, or its name on the Hub.
        revision: its revision there; None for the newest, and for a folder.
    """

    name: str
    revision: str | None = None


def read_result(path: Path) -> Result:
    """Read a run's result.

    Args:
        path: the run's output folder, or its workspace.

    Raises:
        RunError: it is none (66), or its files are not those that the run left (65).
        OSError: it cannot be read.
    """
    folder = next((one for one in (path, path / "output") if (one / MANIFEST).is_file()), None)
    if folder is None:
        raise RunError(
            ExitCode.NO_INPUT,
            f"{path} is not the result of a finished run: {MANIFEST} is missing; name a run's output folder",
        )
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict):
        raise RunError(ExitCode.BAD_DATA, f"{folder / MANIFEST} is not a JSON object: fetch the result again")
    problems = list(manifest_flaws(manifest)) or [unfinished(manifest), *changed_files(folder, manifest)]
    if any(problems):
        told = "\n".join(f"{folder}: {problem}" for problem in problems if problem)
        raise RunError(ExitCode.BAD_DATA, f"{told}\nfetch the result again, or wait until its run has finished")
    return Result(folder, manifest)


def base_of(result: Result, given: str) -> AdapterBase:
    """Return the base model of an adapter.

    Args:
        result: the adapter.
        given: the user's choice, a folder or a name on the Hub; empty for what the run was told.

    Raises:
        RunError: it is not here (66), or the adapter is of another (78).
        OSError: the adapter cannot be read.
    """
    trained = result.manifest["base_model"]
    name = given or str(trained.get("name_or_path") or "")
    folder = Path(name)
    if not (name and folder.is_dir()):
        if not is_hub_name(name):
            raise RunError(
                ExitCode.NO_INPUT,
                f"the base model {name or '(the manifest names none)'} is not on this machine: name its folder, or its "
                "name on the Hub, with --base",
            )
        before = trained.get("name_or_path")
        if is_hub_name(before) and before.lower() != name.lower():
            raise RunError(
                ExitCode.CONFIG, f"{result.path} was trained on {before}, not on {name}: name that model with --base"
            )
        return AdapterBase(name, trained.get("revision") if before == name else None)
    adapter = read_adapter(result.path)
    if adapter.damage:
        raise RunError(ExitCode.BAD_DATA, f"{result.path}: {'; '.join(adapter.damage)}; fetch the result again")
    if found := misfits(adapter, read_base_model(folder)):
        told = "; ".join(found)
        raise RunError(
            ExitCode.CONFIG, f"{result.path} is not an adapter of {folder}: {told}; name its base model with --base"
        )
    return AdapterBase(name)
