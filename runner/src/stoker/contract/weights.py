"""Checks the structure of model and checkpoint files without loading them or the libraries that wrote them."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

# torch.save writes zip archives since torch 1.6.
_TORCH_SUFFIXES = {".pt", ".pth", ".bin"}
_WEIGHT_SUFFIXES = _TORCH_SUFFIXES | {".safetensors", ".ckpt", ".gguf"}
_ZIP_MAGIC = b"PK\x03\x04"
# The limit of the format (safetensors, SafeTensors::read_metadata).
_MAX_HEADER_BYTES = 100_000_000


def read_header(path: Path) -> bytes:
    """Return the raw header of a safetensors file.

    Format: 8 bytes of length (little endian), that many bytes of JSON, then the tensors.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a safetensors file.
    """
    with path.open("rb") as stream:
        start = stream.read(8)
        if len(start) < 8:
            raise ValueError("it ends inside its header")
        (length,) = struct.unpack("<Q", start)
        if length > _MAX_HEADER_BYTES:
            raise ValueError("its header has an impossible length")
        return stream.read(length)


def parse_header(header: bytes) -> dict[str, Any]:
    """Return the entries of a safetensors header: tensor's name → dtype, shape and place in the file.

    Raises:
        ValueError: the header is not valid.
    """
    try:
        entries = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ValueError("its header is not JSON") from error
    if not isinstance(entries, dict):
        raise ValueError("its header is not a JSON object")
    return {name: entry for name, entry in entries.items() if name != "__metadata__"}


def missing_weights(folder: Path) -> str:
    """Return which weights a model's folder lacks; empty if it lacks none, or is no folder of a whole model."""
    if not (folder / "config.json").is_file():
        return ""
    if not any(path.suffix in _WEIGHT_SUFFIXES for path in folder.rglob("*")):
        return "it has no weights"
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").exists() or not index.exists():
        return ""
    try:
        listed = {str(name) for name in json.loads(index.read_bytes())["weight_map"].values()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""  # another check reports a file that is damaged
    absent = sorted(name for name in listed if not (folder / name).exists())
    return f"{index.name} lists {absent[0]}, which is not there" if absent else ""


def damage_of(path: Path) -> str:
    """Return what is wrong with a file's structure; empty if nothing is wrong, or the kind of file is unknown.

    Values of tensors are not checked, because that would read the whole file.
    """
    try:
        return damage_found_in(path)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"


def damage_found_in(path: Path) -> str:
    """Return the same as :func:`damage_of`, but raise if the file cannot be read.

    Raises:
        OSError: the file cannot be read, so its state is unknown.
    """
    try:
        if path.suffix == ".safetensors":
            return _damage_of_safetensors(path)
        if path.suffix == ".json":
            json.loads(path.read_bytes())
        elif path.suffix in _TORCH_SUFFIXES:
            return _damage_of_archive(path)
    except (ValueError, RecursionError) as error:
        return str(error)
    return ""


def _damage_of_safetensors(path: Path) -> str:
    header = read_header(path)
    try:
        ends = [entry["data_offsets"][1] for entry in parse_header(header).values()]
        expected = 8 + len(header) + max(ends, default=0)
    except (KeyError, IndexError, TypeError):
        return "its header does not say where its tensors are"
    size = path.stat().st_size
    return "" if size == expected else f"it has {size} bytes, its header says {expected}"


def _damage_of_archive(path: Path) -> str:
    with path.open("rb") as stream:
        start = stream.read(len(_ZIP_MAGIC))
    # Other formats use the same suffixes, so only an empty file is certainly wrong.
    if start == _ZIP_MAGIC and not zipfile.is_zipfile(path):
        return "the archive is cut off"
    return "it is empty" if not start.strip(b"\0") else ""
