"""The settings of a server's adapters. The chart writes the file; `prepare` and `watch` read it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.repositories import repository_in
from stoker.contract.strict_yaml import not_yaml, read_yaml

# What reading YAML raises for a file that holds something else, such as an impossible date.
NOT_YAML = (yaml.YAMLError, ValueError)
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
        weights: where a run publishes whole weights, which the server takes in place; None if it serves adapters.
        fleet: where the desired states of its fleet are; None if it belongs to none.
        model_value: the chart's values that name the model, for messages; empty if there are none.
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
    weights: Path | None = None
    fleet: Path | None = None
    model_value: str = ""

    @property
    def changes(self) -> bool:
        """True if adapters may come and go while the server runs."""
        return self.folder is not None or self.listed is not None or (self.fleet is not None and not self.takes_weights)

    @property
    def takes_weights(self) -> bool:
        """True if the server's fleet takes whole weights: it does if there is no room for adapters."""
        return self.fleet is not None and not (self.max_rank or self.adapters)

    @property
    def fixed(self) -> frozenset[str]:
        """Names the server starts with, which never change: the model's and those of `adapters`."""
        return frozenset({self.model_name, *(one.name for one in self.adapters)})


def read_document(path: Path) -> Any:
    """Return what a YAML file says; None if it is empty.

    Raises:
        OSError: the file cannot be read.
        yaml.YAMLError: it is not YAML, or has several documents.
        ValueError: it is not text, or has an impossible date.
    """
    documents = read_yaml(path.read_text(encoding="utf-8"))
    if len(documents) > 1:
        raise yaml.YAMLError(f"it has {len(documents)} documents: write only one")
    return documents[0] if documents else None


def load(path: Path) -> Settings:
    """Read the settings.

    Raises:
        RunError: the file cannot be read (66) or is wrong (78).
    """
    try:
        data = read_document(path)
    except OSError as error:
        raise RunError(ExitCode.NO_INPUT, f"{path} cannot be read: {error.strerror}") from error
    except NOT_YAML as error:
        raise RunError(ExitCode.CONFIG, not_yaml(path, error)) from error
    model, lora, published, whole, fleet = (
        _Section(data, name, path) for name in ("model", "lora", "published", "weights", "fleet")
    )
    folder, listed, weights = published.text("folder"), published.text("list"), whole.text("folder")
    states = fleet.text("folder")
    named, revision = _fetched(model.text("uri"))
    given: dict[str, Any] = {
        "keep": published.number("keep"),
        "max_rank": lora.number("maxRank"),
        "max_loras": lora.number("maxLoras"),
        "max_cpu_loras": lora.number("maxCpuLoras"),
        "require_manifest": lora.switch("requireManifest"),
        "others": lora.switch("others"),
    }
    return Settings(
        model=Path(model.needed("path")),
        model_name=model.needed("name"),
        source=model.text("source") or named,
        revision=model.text("revision") or revision,
        adapters=declared(data.get("adapters"), str(path)),
        folder=Path(folder) if folder else None,
        listed=Path(listed) if listed else None,
        weights=Path(weights) if weights else None,
        fleet=Path(states) if states else None,
        model_value=model.text("value"),
        **{name: value for name, value in given.items() if value is not None},
    )


def _fetched(uri: str) -> tuple[str, str]:
    """Return repository and revision of the address that the model was fetched from; empty if it is not the Hub's."""
    if not uri.lower().startswith("hf://"):
        return "", ""
    name, _, revision = repository_in("model", uri, "model.uri")
    return name, revision or ""


class _Section:
    """One part of the settings, whose values have the types that the chart writes.

    Raises:
        RunError: the part, or a value when it is read, has another type (78).
    """

    def __init__(self, data: object, name: str, path: Path) -> None:
        self._where = f"{path}: {name}"
        found = (data.get(name) or {}) if isinstance(data, dict) else None
        if not isinstance(found, dict):
            raise _wrong(self._where, found, "a mapping")
        self._values = found

    def text(self, key: str) -> str:
        """Return a text; empty if it is missing."""
        value = self._values.get(key)
        if value is None:
            return ""
        if not isinstance(value, str) or "\0" in value:
            raise _wrong(f"{self._where}.{key}", value, "a text, in quotes")
        return value

    def needed(self, key: str) -> str:
        """Return a text that may not be missing."""
        value = self.text(key)
        if not value:
            raise _wrong(f"{self._where}.{key}", None, "a text")
        return value

    def number(self, key: str) -> int | None:
        """Return a whole number, 1 or more; None if it is missing."""
        value = self._values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | None) or (value is not None and value < 1):
            raise _wrong(f"{self._where}.{key}", value, "a whole number, 1 or more")
        return value

    def switch(self, key: str) -> bool | None:
        """Return true or false; None if it is missing."""
        value = self._values.get(key)
        if not isinstance(value, bool | None):
            raise _wrong(f"{self._where}.{key}", value, "true or false")
        return value


def _wrong(where: str, value: object, instead: str) -> RunError:
    return RunError(ExitCode.CONFIG, f"{where} is {'missing' if value is None else repr(value)}: write {instead}")


def declared(entries: Any, where: str) -> tuple[Declared, ...]:
    """Return the adapters of a list of `{name, path}`; none of None.

    Raises:
        RunError: 78, it or an entry has another form, or two have the same name.
    """
    found: dict[str, Declared] = {}
    if not isinstance(entries, list | None):
        raise _wrong(f"{where}: the list of adapters", entries, "[{name: NAME, path: FOLDER}]")
    for entry in entries or ():
        if not isinstance(entry, Mapping) or set(entry) != {"name", "path"}:
            raise RunError(ExitCode.CONFIG, f"{where}: adapter {entry!r} is wrong: write {{name: NAME, path: FOLDER}}")
        name = entry["name"]
        if not isinstance(name, str):
            raise _wrong(f"{where}: the name of an adapter", name, "a text, in quotes")
        if not _NAME.match(name):
            raise RunError(
                ExitCode.CONFIG,
                f"{where}: adapter name {name!r} is wrong: use letters, digits, '.', '_' and '-', at most 128",
            )
        if name in found:
            raise RunError(ExitCode.CONFIG, f"{where}: two adapters have the name {name}: rename one")
        path = entry["path"]
        if not isinstance(path, str) or not path or "\0" in path:
            raise _wrong(f"{where}: the path of adapter {name}", path, "a folder")
        found[name] = Declared(name, Path(path))
    return tuple(found.values())
