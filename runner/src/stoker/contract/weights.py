"""Looks inside the files of models and checkpoints without loading them, or the libraries that wrote them."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

# torch.save writes zip archives since torch 1.6.
_TORCH_SUFFIXES = {".pt", ".pth", ".bin"}
_ZIP_MAGIC = b"PK\x03\x04"
# The limit of the format (safetensors, SafeTensors::read_metadata).
_MAX_HEADER_BYTES = 100_000_000


def read_header(path: Path) -> bytes:
    """Return the header of a safetensors file as it stands there.

    Format: 8 bytes of length (little endian), that many bytes of JSON, then the tensors.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no safetensors file.
    """
    with path.open("rb") as stream:
        start = stream.read(8)
        if len(start) < 8:
            raise ValueError("it ends in its header")
        (length,) = struct.unpack("<Q", start)
        if length > _MAX_HEADER_BYTES:
            raise ValueError("its header has no sensible length")
        return stream.read(length)


def parse_header(header: bytes) -> dict[str, Any]:
    """Return what a safetensors header says: tensor's name → dtype, shape and place in the file.

    Raises:
        ValueError: it is none.
    """
    try:
        entries = json.loads(header)
    except ValueError as error:
        raise ValueError("its header is no JSON") from error
    if not isinstance(entries, dict):
        raise ValueError("its header is no JSON object")
    return {name: entry for name, entry in entries.items() if name != "__metadata__"}


def damage_of(path: Path) -> str:
    """Return what is wrong with a file's structure; empty where nothing is, or where its kind is not known here.

    The values of tensors are not looked at: that would mean to read all of them.
    """
    try:
        return damage_found_in(path)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"


def damage_found_in(path: Path) -> str:
    """Return what :func:`damage_of` does, of a file that can be read.

    Raises:
        OSError: it cannot, so that nobody knows.
    """
    try:
        if path.suffix == ".safetensors":
            return _damage_of_safetensors(path)
        if path.suffix == ".json":
            json.loads(path.read_bytes())
        elif path.suffix in _TORCH_SUFFIXES:
            return _damage_of_archive(path)
    except ValueError as error:
        return str(error)
    return ""


def _damage_of_safetensors(path: Path) -> str:
    header = read_header(path)
    try:
        ends = [entry["data_offsets"][1] for entry in parse_header(header).values()]
        expected = 8 + len(header) + max(ends, default=0)
    except (KeyError, IndexError, TypeError):
        return "its header does not place its tensors"
    size = path.stat().st_size
    return "" if size == expected else f"it has {size} bytes, its header says {expected}"


def _damage_of_archive(path: Path) -> str:
    with path.open("rb") as stream:
        start = stream.read(len(_ZIP_MAGIC))
    # Older formats and those of other libraries carry the same suffixes, but nobody writes a file of nothing.
    if start == _ZIP_MAGIC and not zipfile.is_zipfile(path):
        return "the archive has no end"
    return "it holds nothing" if not start.strip(b"\0") else ""
