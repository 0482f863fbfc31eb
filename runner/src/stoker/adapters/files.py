"""Reads what an adapter's and a model's folder say, without loading a tensor. Nothing here judges."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.checkpoints import MANIFEST
from stoker.contents import damage_of, parse_header, read_header
from stoker.exits import ExitCode, RunError
from stoker.files import read_json

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
    config = read_json(path / CONFIG) if CONFIG in names else {}
    if not isinstance(config, dict):
        damage.append(f"{CONFIG} is no JSON object")
    manifest = read_json(path / MANIFEST) if MANIFEST in names else None
    if MANIFEST in names and not isinstance(manifest, dict):
        damage.append(f"{MANIFEST} is no JSON object")
        manifest = None
    tensors: Shapes = {}
    if WEIGHTS in names:
        if flaw := damage_of(path / WEIGHTS):
            damage.append(f"{WEIGHTS}: {flaw}")
        else:
            tensors = _shapes(path / WEIGHTS)
    damage += _changed_files(path, manifest or {})
    return Adapter(path, config if isinstance(config, dict) else {}, manifest, tensors, _tokens(path), tuple(damage))


def read_model(path: Path, source: str = "", revision: str = "") -> Model:
    """Read a base model's folder.

    Raises:
        RunError: 66, there is no model in it.
    """
    if not (path / "config.json").is_file():
        raise RunError(ExitCode.NO_INPUT, f"{path} holds no model: config.json is missing")
    index = read_json(path / _INDEX)
    try:
        names = sorted(set(index["weight_map"].values())) if isinstance(index, dict) else ["model.safetensors"]
        tensors: dict[str, tuple[int, ...]] = {}
        for name in names:
            if isinstance(index, dict) or (path / name).exists():
                tensors.update(_shapes(path / name))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise RunError(ExitCode.NO_INPUT, f"the weights in {path} cannot be read: {error}") from error
    config = read_json(path / "config.json")
    quantized = isinstance(config, dict) and bool(config.get("quantization_config"))
    return Model(path, source, revision, tensors, _tokens(path), quantized)


def _shapes(path: Path) -> Shapes:
    return {name: tuple(entry["shape"]) for name, entry in parse_header(read_header(path)).items()}


def _changed_files(path: Path, manifest: Mapping[str, Any]) -> Iterable[str]:
    """Yield what differs between a folder and the list of files in its manifest."""
    for entry in manifest.get("files", ()):
        if not isinstance(entry, dict) or Path(str(entry.get("path"))).name != entry.get("path"):
            yield f"{MANIFEST} does not list its files as this program does"
            continue
        file = path / entry["path"]
        # What a manifest lists besides, such as a model card, may stay behind when an adapter is copied.
        if not file.exists():
            if entry["path"] in (CONFIG, WEIGHTS):
                yield f"{entry['path']} is missing"
            continue
        if file.stat().st_size != entry.get("bytes"):
            yield f"{entry['path']} has {file.stat().st_size} bytes, {MANIFEST} says {entry.get('bytes')}"
        elif "sha256" in entry and _digest(file) != entry["sha256"]:
            yield f"{entry['path']} is not what the run wrote: its checksum differs from {MANIFEST}"
        elif entry.get("header_sha256") and hashlib.sha256(read_header(file)).hexdigest() != entry["header_sha256"]:
            yield f"{entry['path']} is not what the run wrote: its header differs from {MANIFEST}"


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
