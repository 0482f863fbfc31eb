"""The output manifest `stoker.json`: what a finished run leaves for a server. Written, read and checked here.

schemas/manifest-v1.json describes it. In an output folder it exists only if the run finished. A run that still trains
may publish versions of its adapter (reinforcement learning does); each has a manifest of its own that says so.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from stoker.contract.files import read_json, share_with_group, write_json
from stoker.contract.weights import parse_header, read_header
from stoker.contract.words import say, timestamp

MANIFEST = "stoker.json"
LAST_ERROR = "last-error.json"
MANIFEST_VERSION = 1
# A run leaves folders beside the result in its output; their names begin so.
SET_ASIDE = "set-aside-"
EARLIER_OUTPUT = "earlier-output-"
BESIDE_THE_RESULT = ("checkpoint-", SET_ASIDE, EARLIER_OUTPUT)
# The status of a version that its run publishes while it trains.
LIVE = "live"
# PEFT's names (peft 0.21).
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

# Names of low-rank weights in a PEFT adapter (peft 0.21), and of embeddings and output heads.
_LOW_RANK = re.compile(r"\.(lora|dora)_")
_EMBEDDING = re.compile(r"(^|\.)(embed\w*|lm_head|wte|wpe|word_embeddings|output_layer)\.")
# Files up to this size are hashed whole. For larger weights the size and the safetensors header are recorded.
_HASHED_BYTES = 256 * 2**20


def write_manifest(output: Path, run: Mapping[str, Any]) -> dict[str, Any]:
    """Write the manifest of a finished run.

    Args:
        output: the run's output folder.
        run: the run's fields, by the names of the schema; `base_model` is needed.

    Returns:
        the manifest.

    Raises:
        OSError: the output folder cannot be written to.
    """
    adapter = _complete_adapter_config(output, run["base_model"]["name_or_path"])
    manifest: dict[str, Any] = {
        "schemaVersion": MANIFEST_VERSION,
        "status": "finished",
        "time": timestamp(),
        **run,
        "adapter": None if adapter is None else _adapter(adapter, output / ADAPTER_WEIGHTS),
        "files": [*_described_files(output)],
    }
    write_json(output / MANIFEST, manifest)
    return manifest


def write_live_manifest(version: Path, base_model: Mapping[str, str | None]) -> dict[str, Any]:
    """Write the manifest of a version that a run publishes while it trains.

    Such versions are many, short-lived, and may hardly differ from the base model. So servers do not measure their
    effect (`probe`), and keep them all until the run retracts them (`keep`).

    Args:
        version: the version's folder, with the adapter in it.
        base_model: its `name_or_path` and `revision`.

    Returns:
        the manifest.

    Raises:
        OSError: the folder cannot be written to.
    """
    adapter = _complete_adapter_config(version, base_model["name_or_path"])
    manifest: dict[str, Any] = {
        "schemaVersion": MANIFEST_VERSION,
        "status": LIVE,
        "time": timestamp(),
        "base_model": dict(base_model),
        "adapter": None if adapter is None else _adapter(adapter, version / ADAPTER_WEIGHTS),
        "probe": "none",
        "keep": "all",
        "files": [*_described_files(version)],
    }
    write_json(version / MANIFEST, manifest)
    return manifest


def leave_out(output: Path, names: Iterable[str]) -> None:
    """Have a manifest no longer list files, which are about to change.

    Args:
        output: a finished run's output folder.
        names: the files.

    Raises:
        OSError: the folder cannot be written to.
    """
    manifest = read_json(output / MANIFEST)
    if isinstance(manifest, dict):
        left = [entry for entry in manifest["files"] if entry["path"] not in {*names}]
        write_json(output / MANIFEST, {**manifest, "files": left})


def describe_again(output: Path, names: Iterable[str]) -> None:
    """Have a manifest list files as they are now; those that do not exist are left out.

    Args:
        output: a finished run's output folder.
        names: files that were written after the manifest.

    Raises:
        OSError: the folder cannot be written to.
    """
    manifest = read_json(output / MANIFEST)
    if not isinstance(manifest, dict):
        return
    described = {entry["path"]: entry for entry in manifest["files"]}
    for name in names:
        described.pop(name, None)
        if (output / name).is_file() and (entry := _shared(output / name)) is not None:
            described[name] = entry
    write_json(output / MANIFEST, {**manifest, "files": [described[name] for name in sorted(described)]})


def unfinished(manifest: Mapping[str, Any]) -> str:
    """Return why a manifest is not from a finished run; empty if it is."""
    status = manifest.get("status")
    return "" if status == "finished" else f"{MANIFEST} says the run is {status!r}, not 'finished'"


def is_live(manifest: Mapping[str, Any]) -> bool:
    """Return whether a manifest is of a version that a run published while it trained."""
    return manifest.get("status") == LIVE


def manifest_flaws(manifest: Mapping[str, Any]) -> Iterable[str]:
    """Yield where a manifest differs from its schema, in the fields that are read: anybody may have written it."""
    if manifest.get("schemaVersion") != MANIFEST_VERSION:
        found = manifest.get("schemaVersion")
        yield f"{MANIFEST} has schemaVersion {found!r}, but this Stoker reads {MANIFEST_VERSION}"
        return
    for key, kind, word in (("files", list, "a list"), ("base_model", dict, "an object")):
        if not isinstance(manifest.get(key), kind):
            yield f"{MANIFEST}: {key} is {manifest.get(key)!r}, not {word}"
    adapter = manifest.get("adapter")
    if not isinstance(adapter, dict | None):
        yield f"{MANIFEST}: adapter is {adapter!r}, not an object or null"
    elif adapter is not None and not is_names(adapter.get("changed_embeddings", [])):
        yield f"{MANIFEST}: adapter.changed_embeddings is {adapter['changed_embeddings']!r}, not a list of names"


def is_names(value: object) -> TypeGuard[list[str]]:
    """Return whether a value is a list of texts."""
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def changed_files(path: Path, manifest: Mapping[str, Any]) -> Iterable[str]:
    """Yield the differences between a folder and the list of files in its manifest."""
    listed = [entry.get("path") for entry in manifest["files"] if isinstance(entry, dict)]
    if manifest.get("adapter") is not None:
        yield from (
            f"{MANIFEST} does not list {name}" for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS) if name not in listed
        )
    for entry in manifest["files"]:
        if not isinstance(entry, dict) or Path(str(entry.get("path"))).name != entry.get("path"):
            yield f"{MANIFEST} lists its files in an unknown form"
            continue
        file = path / entry["path"]
        # Other listed files, such as a model card, may be missing from a copy of an adapter.
        if not file.exists():
            if entry["path"] in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
                yield f"{entry['path']} is missing"
            continue
        if not file.is_file():
            yield f"{MANIFEST} lists {entry['path']!r}, which is not a file"
        elif file.stat().st_size != entry.get("bytes"):
            yield f"{entry['path']} has {file.stat().st_size} bytes, but {MANIFEST} says {entry.get('bytes')}"
        elif "sha256" in entry and _digest(file) != entry["sha256"]:
            yield f"{entry['path']} has changed since the run: its checksum differs from {MANIFEST}"
        elif entry.get("header_sha256") and not _has_header(file, entry["header_sha256"]):
            yield f"{entry['path']} has changed since the run: its header differs from {MANIFEST}"


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _header_digest(path: Path) -> str:
    """Return the digest of a safetensors header.

    Raises:
        ValueError: the file has no such header.
    """
    return hashlib.sha256(read_header(path)).hexdigest()


def _has_header(path: Path, digest: str) -> bool:
    try:
        return _header_digest(path) == digest
    except ValueError:
        return False


def _complete_adapter_config(output: Path, base_model: object) -> Any | None:
    """Return the adapter's configuration, None without one; add the base model if the trainer left it out.

    TorchTune 0.6.1 leaves it out, and no server can load the adapter without it.
    """
    config = read_json(output / ADAPTER_CONFIG)
    if not isinstance(config, dict):
        return None
    if not config.get("base_model_name_or_path") and base_model:
        config["base_model_name_or_path"] = base_model
        write_json(output / ADAPTER_CONFIG, config)
    return config


def _adapter(config: Mapping[str, Any], weights: Path) -> dict[str, Any]:
    # Field names of PEFT's adapter_config.json (peft 0.21).
    return {
        "type": config.get("peft_type"),
        "rank": config.get("r"),
        "alpha": config.get("lora_alpha"),
        "target_modules": sorted(config["target_modules"])
        if isinstance(config.get("target_modules"), list)
        else config.get("target_modules"),
        "modules_to_save": config.get("modules_to_save"),
        "changed_embeddings": _changed_embeddings(weights),
        "use_dora": config.get("use_dora", False),
        "use_rslora": config.get("use_rslora", False),
    }


def _changed_embeddings(weights: Path) -> list[str]:
    """Return the tensors of an adapter that replace or extend embeddings or the output head."""
    try:
        names = parse_header(read_header(weights))
    except (OSError, ValueError):  # another format, which PEFT does not write by default
        return []
    return sorted(name for name in names if _EMBEDDING.search(name) and not _LOW_RANK.search(name))


def _is_output(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".") and path.name not in (MANIFEST, LAST_ERROR)


def _described_files(output: Path) -> Iterator[dict[str, Any]]:
    """Share a run's files with the group, and yield a description of each.

    Others may write into the folder too: their files must not cost a finished run its manifest.
    """
    for path in sorted(output.iterdir()):
        with suppress(FileNotFoundError):  # its owner may remove it meanwhile
            if _is_output(path) and (described := _shared(path)) is not None:
                yield described


def _shared(path: Path) -> dict[str, Any] | None:
    """Share a file with the group and describe it; None for another user's that this one cannot read.

    Raises:
        OSError: it is gone, or this user's own file cannot be read.
    """
    try:
        share_with_group(path)
        return _described(path)
    except PermissionError:
        if path.stat().st_uid == os.geteuid():
            raise
        say(f"cannot read {path} (owned by another user): {MANIFEST} omits it")
        return None


def _described(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    if size <= _HASHED_BYTES:
        return {"path": path.name, "bytes": size, "sha256": _digest(path)}
    header = _header_digest(path) if path.suffix == ".safetensors" else None
    return {"path": path.name, "bytes": size, "header_sha256": header}
