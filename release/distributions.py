"""The Python package as others install it: source distribution and wheel, the same bytes at every build of a commit."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from release import ROOT, commit, referrers
from release.artifacts import PYTHON, Artifact
from release.errors import UNAVAILABLE, ReleaseError


def build(out: Path, source: Path = ROOT / "runner") -> list[Path]:
    """Build source distribution and wheel into `out`, and return them.

    Args:
        out: the folder.
        source: the package, from the checkout or from an unpacked source distribution.

    Raises:
        ReleaseError: the build failed; its message holds what it said.
    """
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--directory", out, "--target", "sdist", "--target", "wheel"],
        cwd=source, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": commit.seconds()},
    )  # fmt: skip
    if done.returncode != 0:
        raise ReleaseError(UNAVAILABLE, f"hatchling build: {done.stdout.rstrip()}")
    built = sorted(out.glob("stoker-*"))
    (out / "SHA256SUMS").write_text("".join(f"{digest(path)}  {path.name}\n" for path in built), encoding="utf-8")
    return built


def push(built: Sequence[Path], registry: str, plain_http: bool = False) -> Artifact:
    """Push source distribution and wheel as one artifact, and return it with its digest.

    Args:
        built: both, as `build` returns them.
        registry: where they go, below `python`.
        plain_http: the registry speaks HTTP.

    Raises:
        ReleaseError: crane failed.
    """
    types = {".gz": "application/gzip", ".whl": "application/zip"}
    files = [referrers.File(path.name, types[path.suffix], path.read_bytes()) for path in built]
    (version,) = {path.name.removesuffix(".tar.gz").split("-")[1] for path in built}
    target = Artifact(f"{registry}/{PYTHON}", version)
    return referrers.push(target, "application/vnd.stoker.python", files, http=plain_http)


def digest(path: Path) -> str:
    """Return a file's SHA-256, as `sha256sum --check` reads it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
