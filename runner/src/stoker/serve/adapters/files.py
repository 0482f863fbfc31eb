"""Reads the folder of an adapter or a model without loading a tensor. Nothing here judges."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import read_json
from stoker.contract.manifest import ADAPTER_CONFIG, ADAPTER_WEIGHTS, MANIFEST, changed_files, manifest_flaws
from stoker.contract.weights import damage_of, parse_header, read_header
from stoker.serve.adapters.fingerprint import fingerprint

_INDEX = "model.safetensors.index.json"

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter's folder.

    Attributes:
        path: the folder.
        config: PEFT's adapter_config.json; empty if it is missing.
        manifest: what the run wrote at its end (stoker.json); None if it is missing.
        tensors: shape of each tensor in the weights.
        tokens: number of tokens in the adapter's tokenizer; None without one.
        damage: what is missing or broken, one text each.
    """

    path: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    manifest: Mapping[str, Any] | None = None
    tensors: Shapes = field(default_factory=dict)
    tokens: int | None = None
    damage: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BaseModel:
    """The base model a server has.

    Attributes:
        path: its folder.
        source: where it came from, such as `Qwen/Qwen3-0.6B`; empty if not known.
        revision: its revision there; empty if not known.
        tensors: shape of each tensor in the weights; empty if they are not in safetensors.
        tokens: number of tokens in its tokenizer; None without one.
        quantized: True if its weights are packed, so that their names and shapes differ from those of the modules.
        fingerprint: tells it from other models; empty if its weights are not in safetensors.
    """

    path: Path
    source: str = ""
    revision: str = ""
    tensors: Shapes = field(default_factory=dict)
    tokens: int | None = None
    quantized: bool = False
    fingerprint: str = ""


def read_adapter(path: Path) -> Adapter:
    """Read an adapter's folder. The result lists what is wrong with its files.

    Raises:
        OSError: the folder cannot be read; later it may be (a shared file system that lags).
    """
    # Listing the folder first makes a network file system look again for files that were missing a moment ago.
    names = {entry.name for entry in path.iterdir()}
    damage = [f"{name} is missing" for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS) if name not in names]
    config = _object(path / ADAPTER_CONFIG) if ADAPTER_CONFIG in names else {}
    if config is None:
        damage.append(f"{ADAPTER_CONFIG} is not a JSON object")
    manifest = _object(path / MANIFEST) if MANIFEST in names else None
    if MANIFEST in names and manifest is None:
        damage.append(f"{MANIFEST} is not a JSON object")
    tensors: Shapes = {}
    if ADAPTER_WEIGHTS in names:
        try:
            if flaw := damage_of(path / ADAPTER_WEIGHTS):
                raise ValueError(flaw)
            tensors = _shapes(path / ADAPTER_WEIGHTS)
        except ValueError as error:
            damage.append(f"{ADAPTER_WEIGHTS}: {error}")
    if manifest is not None:
        damage += list(manifest_flaws(manifest)) or changed_files(path, manifest)
    return Adapter(path, config or {}, manifest, tensors, _tokens(path), tuple(damage))


def adapter_written(path: Path) -> int:
    """Return when the weights of an adapter's folder were written, in nanoseconds since the epoch; 0 if unreadable."""
    try:
        with (path / ADAPTER_WEIGHTS).open("rb") as file:  # an open file's times are new, also on NFS
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return 0


def _object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if it holds something else. Raise OSError if it cannot be read."""
    try:
        found = json.loads(path.read_text())
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_base_model(path: Path, source: str = "", revision: str = "") -> BaseModel:
    """Read a base model's folder.

    Raises:
        RunError: 66, the folder has no model.
    """
    if not (path / "config.json").is_file():
        raise RunError(ExitCode.NO_INPUT, f"{path} has no model: config.json is missing")
    try:
        tensors: dict[str, tuple[int, ...]] = {}
        files = weight_files(path)
        for file in files:
            tensors.update(_shapes(file))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(ExitCode.NO_INPUT, f"the weights in {path} cannot be read: {error}") from error
    config = read_json(path / "config.json")
    quantized = isinstance(config, dict) and bool(config.get("quantization_config"))
    return BaseModel(path, source, revision, tensors, _tokens(path), quantized, _fingerprint(files))


def weight_files(path: Path) -> list[Path]:
    """Return the safetensors files of a model's folder; none if its weights are in other files.

    Raises:
        KeyError, TypeError, AttributeError: its index has another form.
    """
    index = read_json(path / _INDEX)
    if isinstance(index, dict):
        return [path / name for name in sorted(set(map(str, index["weight_map"].values())))]
    alone = path / "model.safetensors"
    return [alone] if alone.exists() else []


def _fingerprint(files: Iterable[Path]) -> str:
    try:
        return fingerprint(files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # a header may lack what serving does not need
        return ""


def _shapes(path: Path) -> Shapes:
    """Return the shapes of a safetensors file's tensors; raise ValueError if its header does not have them."""
    try:
        shapes = {name: tuple(entry["shape"]) for name, entry in parse_header(read_header(path)).items()}
    except (KeyError, TypeError) as error:
        raise ValueError("its header has no shapes of tensors") from error
    if not all(isinstance(length, int) for shape in shapes.values() for length in shape):
        raise ValueError("its header has shapes that are not numbers")
    return shapes


def _tokens(path: Path) -> int | None:
    """Return one more than the highest token id in a folder's tokenizer.json; None without one."""
    try:
        tokenizer = json.loads((path / "tokenizer.json").read_bytes())
        vocabulary = tokenizer["model"]["vocab"]
        # Unigram models list [piece, score], the others map a piece to its id.
        highest = max(vocabulary.values()) if isinstance(vocabulary, dict) else len(vocabulary) - 1
        return 1 + int(max([highest, *(token["id"] for token in tokenizer.get("added_tokens", ()))]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
