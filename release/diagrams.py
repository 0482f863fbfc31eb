"""The program that draws the diagrams of the documentation site: Mermaid, from the npm registry."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from images.builder import cache

from release import tools
from release.errors import UNAVAILABLE, ReleaseError

NAME = "mermaid.min.js"
_VERSION = "11.17.2"
_INTEGRITY = "V6K3C8EBdEsPFZXSKMJe6ppQOENxuHARr9GvHX4hh47lAbhMRD9qf4oEK7LoaRQxULMa80/qt5gHO73aCleBBg=="


def program() -> Path:
    """Return Mermaid's file, fetched first where that was not done yet.

    Raises:
        ReleaseError: npm is missing, cannot get it, or gets another one.
    """
    return cache.entry(cache.root() / "site" / f"mermaid-{_VERSION}", "mermaid", _fetch) / NAME


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        command = [str(tools.path("npm")), "pack", "--silent", "--pack-destination", temporary, f"mermaid@{_VERSION}"]
        done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise ReleaseError(UNAVAILABLE, f"npm pack mermaid@{_VERSION}: {(done.stderr or done.stdout).strip()}")
        (package,) = Path(temporary).iterdir()
        if base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode() != _INTEGRITY:
            raise ReleaseError(UNAVAILABLE, f"npm got another mermaid@{_VERSION} than the one that is pinned")
        with tarfile.open(package) as archive:
            member = archive.extractfile(f"package/dist/{NAME}")
            if member is None:
                raise ReleaseError(UNAVAILABLE, f"mermaid@{_VERSION} has no dist/{NAME}")
            with (folder / NAME).open("wb") as target:
                shutil.copyfileobj(member, target)
