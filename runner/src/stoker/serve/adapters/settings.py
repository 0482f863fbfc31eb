"""The settings of a server's adapters. The chart writes the file; `prepare` and `watch` read it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from stoker.contract.exits import ExitCode, RunError

_NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?$")


@dataclass(frozen=True, slots=True)
class Declared:
    """An adapter that the settings or the list name.

    Attributes:
        name: what requests call it.
        path: its folder.
    """

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a server's adapters.

    Attributes:
        model: folder of the base model.
        model_name: what requests call the base model.
        source: where the model came from, such as `Qwen/Qwen3-0.6B`; empty if not known.
        revision: its revision there; empty if not known.
        adapters: those the server starts with.
        folder: where versions are published while the server runs; None if they are not.
        listed: file with a further list of adapters, which may change; None if there is none.
        keep: how many of the newest versions of an adapter stay loaded.
        max_rank: the largest rank of any adapter.
        max_loras: adapters in one batch.
        max_cpu_loras: adapters in memory.
        require_manifest: refuse adapters without the manifest of the run that made them.
        others: True if others load adapters too; their names are left alone.
    """

    model: Path
    model_name: str
    source: str = ""
    revision: str = ""
    adapters: tuple[Declared, ...] = ()
    folder: Path | None = None
    listed: Path | None = None
    keep: int = 2
    max_rank: int | None = None
    max_loras: int = 4
    max_cpu_loras: int = 8
    require_manifest: bool = True
    others: bool = False

    @property
    def changes(self) -> bool:
        """True if adapters may come and go while the server runs."""
        return self.folder is not None or self.listed is not None

    @property
    def fixed(self) -> frozenset[str]:
        """Names the server starts with, which never change: the model's and those of `adapters`."""
        return frozenset({self.model_name, *(one.name for one in self.adapters)})


def load(path: Path) -> Settings:
    """Read the settings.

    Raises:
        RunError: the file cannot be read (66) or is wrong (78).
    """
    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise RunError(ExitCode.NO_INPUT, f"{path} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise RunError(ExitCode.CONFIG, f"{path} is not YAML: {error}") from error
    try:
        model, lora, published = data["model"], data.get("lora") or {}, data.get("published") or {}
        return Settings(
            model=Path(model["path"]),
            model_name=model["name"],
            source=model.get("source") or "",
            revision=model.get("revision") or "",
            adapters=declared(data.get("adapters") or (), str(path)),
            folder=Path(published["folder"]) if published.get("folder") else None,
            listed=Path(published["list"]) if published.get("list") else None,
            keep=int(published.get("keep", 2)),
            max_rank=lora.get("maxRank"),
            max_loras=int(lora.get("maxLoras", 4)),
            max_cpu_loras=int(lora.get("maxCpuLoras", 8)),
            require_manifest=bool(lora.get("requireManifest", True)),
            others=bool(lora.get("others", False)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            ExitCode.CONFIG, f"{path} has a missing or wrong setting: {type(error).__name__} {error}"
        ) from error


def declared(entries: Any, where: str) -> tuple[Declared, ...]:
    """Return the adapters of a list of `{name, path}`.

    Raises:
        RunError: 78, an entry has another form, or two have the same name.
    """
    found: dict[str, Declared] = {}
    for entry in entries:
        if not isinstance(entry, Mapping) or set(entry) != {"name", "path"}:
            raise RunError(ExitCode.CONFIG, f"{where}: adapter {entry!r} is wrong: write {{name: NAME, path: FOLDER}}")
        name = str(entry["name"])
        if not _NAME.match(name):
            raise RunError(
                ExitCode.CONFIG,
                f"{where}: adapter name {name!r} is wrong: use letters, digits, '.', '_' and '-', at most 128",
            )
        if name in found:
            raise RunError(ExitCode.CONFIG, f"{where}: two adapters have the name {name}: rename one")
        found[name] = Declared(name, Path(str(entry["path"])))
    return tuple(found.values())
