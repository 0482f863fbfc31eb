"""Reads what an adapter's and a model's folder say, without loading a tensor. Nothing here judges."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from stoker.checkpoints import MANIFEST
from stoker.contents import damage_of, parse_header, read_header
from stoker.exits import ExitCode, RunError
from stoker.files import read_json
from stoker.report import MANIFEST_VERSION

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_INDEX = "model.safetensors.index.json"

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter's folder.

    Attributes:
        path: the folder.
        config: PEFT's adapter_config.json; empty where it is missing.
        manifest: what the run wrote at its end (stoker.json); None where it is missing.
        tensors: shape of each tensor in the weights.
        tokens: how many tokens the tokenizer beside it knows; None without one.
        damage: what is missing or broken, a line each.
    """

    path: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    manifest: Mapping[str, Any] | None = None
    tensors: Shapes = field(default_factory=dict)
    tokens: int | None = None
    damage: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Model:
    """The base model a server has.

    Attributes:
        path: its folder.
        source: where it came from, such as `Qwen/Qwen3-0.6B`; empty where nobody said.
        revision: its revision there; empty where nobody said.
        tensors: shape of each tensor in the weights; empty where they are not in safetensors.
        tokens: how many tokens its tokenizer knows; None without one.
        quantized: its weights are packed, so that their names and shapes are not those of the modules.
    """

    path: Path
    source: str = ""
    revision: str = ""
    tensors: Shapes = field(default_factory=dict)
    tokens: int | None = None
    quantized: bool = False


def read_adapter(path: Path) -> Adapter:
    """Read an adapter's folder; what is wrong with its files is in the result.

    Raises:
        OSError: the folder cannot be read, which may pass (a shared file system that lags).
    """
    # Listing the folder first lets a network file system forget that a file was not there a moment ago.
    names = {entry.name for entry in path.iterdir()}
    damage = [f"{name} is missing" for name in (CONFIG, WEIGHTS) if name not in names]
    config = _object(path / CONFIG) if CONFIG in names else {}
    if config is None:
        damage.append(f"{CONFIG} is no JSON object")
    manifest = _object(path / MANIFEST) if MANIFEST in names else None
    if MANIFEST in names and manifest is None:
        damage.append(f"{MANIFEST} is no JSON object")
    tensors: Shapes = {}
    if WEIGHTS in names:
        try:
            if flaw := damage_of(path / WEIGHTS):
                raise ValueError(flaw)
            tensors = _shapes(path / WEIGHTS)
        except ValueError as error:
            damage.append(f"{WEIGHTS}: {error}")
    if manifest is not None:
        damage += list(_flaws(manifest)) or _changed_files(path, manifest)
    return Adapter(path, config or {}, manifest, tensors, _tokens(path), tuple(damage))


def _object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if it holds something else. Raises OSError where it cannot be read."""
    try:
        found = json.loads(path.read_text())
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def read_model(path: Path, source: str = "", revision: str = "") -> Model:
    """Read a base model's folder.

    Raises:
        RunError: 66, there is no model in it.
    """
    if not (path / "config.json").is_file():
        raise RunError(ExitCode.NO_INPUT, f"{path} holds no model: config.json is missing")
    index = read_json(path / _INDEX)
    try:
        names = (
            sorted(set(map(str, index["weight_map"].values()))) if isinstance(index, dict) else ["model.safetensors"]
        )
        tensors: dict[str, tuple[int, ...]] = {}
        for name in names:
            if isinstance(index, dict) or (path / name).exists():
                tensors.update(_shapes(path / name))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(ExitCode.NO_INPUT, f"the weights in {path} cannot be read: {error}") from error
    config = read_json(path / "config.json")
    quantized = isinstance(config, dict) and bool(config.get("quantization_config"))
    return Model(path, source, revision, tensors, _tokens(path), quantized)


def _shapes(path: Path) -> Shapes:
    """Return the shapes of a safetensors file's tensors; raise ValueError where its header does not say them."""
    try:
        shapes = {name: tuple(entry["shape"]) for name, entry in parse_header(read_header(path)).items()}
    except (KeyError, TypeError) as error:
        raise ValueError("its header does not say what shapes its tensors have") from error
    if not all(isinstance(length, int) for shape in shapes.values() for length in shape):
        raise ValueError("its header has shapes that are no numbers")
    return shapes


def _flaws(manifest: Mapping[str, Any]) -> Iterable[str]:
    """Yield what of a manifest is not what its schema says, as far as it is read: anybody may have written it."""
    if manifest.get("schemaVersion") != MANIFEST_VERSION:
        yield f"{MANIFEST} has schemaVersion {manifest.get('schemaVersion')!r}, this Stoker reads {MANIFEST_VERSION}"
        return
    for key, kind, word in (("files", list, "a list"), ("base_model", dict, "an object")):
        if not isinstance(manifest.get(key), kind):
            yield f"{MANIFEST}: {key} is {manifest.get(key)!r}, not {word}"
    adapter = manifest.get("adapter")
    if not isinstance(adapter, dict | None):
        yield f"{MANIFEST}: adapter is {adapter!r}, neither an object nor null"
    elif adapter is not None and not is_names(adapter.get("changed_embeddings", [])):
        yield f"{MANIFEST}: adapter.changed_embeddings is {adapter['changed_embeddings']!r}, not a list of names"


def is_names(value: object) -> TypeGuard[list[str]]:
    """Return whether a value is a list of texts."""
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _changed_files(path: Path, manifest: Mapping[str, Any]) -> Iterable[str]:
    """Yield what differs between a folder and the list of files in its manifest."""
    listed = [entry.get("path") for entry in manifest["files"] if isinstance(entry, dict)]
    if manifest.get("adapter") is not None:
        yield from (f"{MANIFEST} does not list {name}" for name in (CONFIG, WEIGHTS) if name not in listed)
    for entry in manifest["files"]:
        if not isinstance(entry, dict) or Path(str(entry.get("path"))).name != entry.get("path"):
            yield f"{MANIFEST} does not list its files as this program does"
            continue
        file = path / entry["path"]
        # What a manifest lists besides, such as a model card, may stay behind when an adapter is copied.
        if not file.exists():
            if entry["path"] in (CONFIG, WEIGHTS):
                yield f"{entry['path']} is missing"
            continue
        if not file.is_file():
            yield f"{MANIFEST} lists {entry['path']!r}, which is no file"
        elif file.stat().st_size != entry.get("bytes"):
            yield f"{entry['path']} has {file.stat().st_size} bytes, {MANIFEST} says {entry.get('bytes')}"
        elif "sha256" in entry and _digest(file) != entry["sha256"]:
            yield f"{entry['path']} is not what the run wrote: its checksum differs from {MANIFEST}"
        elif entry.get("header_sha256") and _header_digest(file) != entry["header_sha256"]:
            yield f"{entry['path']} is not what the run wrote: its header differs from {MANIFEST}"


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _header_digest(path: Path) -> str:
    """Return the digest of a safetensors header; empty where there is none."""
    try:
        return hashlib.sha256(read_header(path)).hexdigest()
    except ValueError:
        return ""


def _tokens(path: Path) -> int | None:
    """Return one more than the highest token id in a folder's tokenizer.json; None without one."""
    try:
        tokenizer = json.loads((path / "tokenizer.json").read_bytes())
        vocabulary = tokenizer["model"]["vocab"]
        # Unigram models list [piece, score], the others map a piece to its id.
        highest = max(vocabulary.values()) if isinstance(vocabulary, dict) else len(vocabulary) - 1
        return 1 + int(max([highest, *(token["id"] for token in tokenizer.get("added_tokens", ()))]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
