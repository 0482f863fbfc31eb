"""Builds kept outside the checkout, in folders named by the hash of everything they are made from.

An entry is complete once its marker exists: a virtual environment holds absolute paths, so it is filled where it will
stay rather than moved there. Entries that replace one another are a family: two builds of one family wait for each
other, an interrupted one starts over, and the least recently used entries go, but none that another checkout may use
at this time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from images.builder.install import EX_CONFIG, fail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MARKER = ".complete"
"""Written into an entry when it is finished, and touched at every use."""

# The newest entries of a family stay, and those of others' runs: all tests together take half of this time.
_KEPT = 2
_SECONDS_IN_USE = 6 * 3600


def root() -> Path:
    """Return the folder of all builds: `$XDG_CACHE_HOME/stoker`, else `~/.cache/stoker`; it is made if missing.

    Raises:
        SystemExit: it cannot be made (78); the message says what to set.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "stoker"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(
            EX_CONFIG,
            f"the cache {folder} cannot be made ({error.strerror}): set XDG_CACHE_HOME to a folder you may write to",
        )
    return folder


def digest(facts: Iterable[str] = (), files: Iterable[Path] = (), relative_to: Path = Path("/")) -> str:
    """Return 12 hexadecimal digits that name an entry.

    Args:
        facts: words that decide the content.
        files: files and folders that do; folders count with all they hold except bytecode.
        relative_to: files are named relative to this folder, so that two checkouts share an entry.
    """
    total = hashlib.sha256()

    def add(text: bytes) -> None:
        total.update(len(text).to_bytes(8, "big") + text)

    for fact in facts:
        add(fact.encode())
    for start in files:
        members = sorted(start.rglob("*")) if start.is_dir() else [start]
        for path in members:
            if path.is_file() and "__pycache__" not in path.parts:
                add(str(path.relative_to(relative_to)).encode())
                add(b"x" if os.access(path, os.X_OK) else b"-")
                add(path.read_bytes())
    return total.hexdigest()[:12]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file while the body runs; others wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_complete(folder: Path) -> bool:
    """Return whether an entry was built to its end."""
    return (folder / MARKER).exists()


def entry(folder: Path, family: str, build: Callable[[Path], None]) -> Path:
    """Return a finished entry, building it first where it is missing.

    Args:
        folder: where it lies; its name is the family's, a dash and what tells it from its siblings.
        family: the part of its name that it shares with the entries it replaces.
        build: fills the empty folder; when it raises, the folder is removed.
    """
    if not is_complete(folder):
        with locked(folder.parent / f"{family}.lock"):
            if not is_complete(folder):
                remove(folder)
                folder.mkdir(parents=True)
                try:
                    build(folder)
                except BaseException:
                    remove(folder)
                    raise
                (folder / MARKER).touch()
                prune(folder.parent, family)
    (folder / MARKER).touch()
    return folder


def prune(folder: Path, family: str) -> None:
    """Remove the entries of a family, whose lock the caller holds, that are neither new nor used of late."""
    used = {path: (path / MARKER).stat().st_mtime for path in folder.glob(f"{family}-*") if is_complete(path)}
    for path in sorted(used, key=used.__getitem__, reverse=True)[_KEPT:]:
        if used[path] < time.time() - _SECONDS_IN_USE:
            remove(path)


def remove(folder: Path) -> None:
    """Remove an entry; its marker goes first, so that half a removal never looks finished."""
    (folder / MARKER).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
