"""Tells one base model from another without reading it whole, wherever it lies and however its files are split."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from stoker.contract.weights import parse_header, read_header

# Enough to tell fine-tuned models apart, and little to read from a network file system.
_TENSORS = 32
_BYTES = 64


def fingerprint(files: Iterable[Path]) -> str:
    """Return three digests of a model's safetensors files: of shapes, of kinds of numbers, of samples of the values.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is not a safetensors file.
    """
    tensors = {}
    for file in files:
        header = read_header(file)
        for name, entry in parse_header(header).items():
            tensors[name] = (entry["shape"], entry["dtype"], file, 8 + len(header), entry["data_offsets"])
    if not tensors:
        return ""
    names = sorted(tensors)
    shapes = repr([(name, tensors[name][0]) for name in names])
    kinds = repr([(name, tensors[name][1]) for name in names])
    values = hashlib.sha256()
    for name in names[:: max(1, len(names) // _TENSORS)]:
        _, _, file, start, (begin, end) = tensors[name]
        with file.open("rb") as stream:
            stream.seek(start + (begin + end) // 2)
            values.update(stream.read(min(_BYTES, end - (begin + end) // 2)))
    return "-".join([_short(shapes.encode()), _short(kinds.encode()), values.hexdigest()[:16]])


def difference(one: str, other: str) -> str:
    """Return how two models differ, by their fingerprints; empty if they do not, or it cannot be told."""
    if not one or not other:
        return ""
    (shapes, kinds, values), (shapes2, kinds2, values2) = one.split("-"), other.split("-")
    if shapes != shapes2:
        return "its layers have other names or shapes"
    # The same model in float32 and in bfloat16 has other bytes.
    if kinds == kinds2 and values != values2:
        return "its weights have other values"
    return ""


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
