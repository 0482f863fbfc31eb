"""Which version of this package a cluster was made by."""

from __future__ import annotations

import hashlib
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
#: Parts of the package that the running cluster does not depend on.
_NOT_PART = {"tests", "testing.py", "__pycache__", "README.md"}


def fingerprint() -> str:
    """Return a hash over every file of this package that decides what the cluster is, pins and manifests included."""
    digest = hashlib.sha256()
    for file in sorted(_PACKAGE.rglob("*")):
        inside = file.relative_to(_PACKAGE)
        if file.is_file() and not _NOT_PART.intersection(inside.parts):
            digest.update(str(inside).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
