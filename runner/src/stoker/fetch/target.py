"""The folder for a model or data set. It appears whole and verified, with a record of what it holds, or not at all.

Files are fetched into `<workspace>/.stoker/fetch/<kind>-<key>`; the key stands for the source and its exact content. An
interrupted fetch continues there. Then the folder is renamed to the target in one step.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import read_json, share_with_group, write_json
from stoker.contract.words import say, timestamp
from stoker.fetch.request import FetchRequest
from stoker.fetch.selection import RECORD, File, Selection

_LOCK_POLL_SECONDS = 1.0
# No trainer reads these.
_FOR_PEOPLE = re.compile(r"(^|/)(licen[sc]e([-_][\w-]+|\.(md|txt|rst))?|\.gitattributes)$", re.IGNORECASE)
_CARD = "README.md"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


class Target:
    """The target of a request, and the folder where it is prepared.

    Args:
        request: what is fetched.
    """

    def __init__(self, request: FetchRequest) -> None:
        self.request = request
        self.path = request.target
        self._own = request.target.parent / ".stoker" / "fetch"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the target's lock: if several pods share the volume, one fetches and the others wait.

        Raises:
            RunError: the workspace cannot be written to (78).
        """
        path = self._own / f"{self.request.kind}.lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = path.open("a")
        except OSError as error:
            raise RunError(
                ExitCode.CONFIG,
                f"user {os.getuid()} cannot write {error.filename or path} ({error.strerror}) below "
                f"{self.path.parent}: {self.request.fields.volume}",
            ) from error
        with stream:
            _share(path)
            waiting = False
            while not _lock(stream.fileno()):
                if not waiting:
                    say(f"another pod is fetching {self.path}: waiting for it")
                waiting = True
                time.sleep(_LOCK_POLL_SECONDS)
            yield

    def record(self) -> dict[str, Any] | None:
        """Return the target's record; None if a file that it lists is missing or incomplete."""
        found = read_json(self.path / RECORD)
        if not isinstance(found, dict) or not isinstance(found.get("files"), list):
            return None
        try:
            whole = all((self.path / file["path"]).stat().st_size == file["bytes"] for file in found["files"])
        except (OSError, KeyError, TypeError):
            return None
        return found if whole else None

    def is_empty(self) -> bool:
        """Return whether the target has no files."""
        try:
            return not any(self.path.iterdir())
        except FileNotFoundError:
            return True

    def described(self, selection: Selection, revision: str | None) -> dict[str, Any]:
        """Return the record of a selection."""
        request = self.request
        return {
            "uri": request.uri,
            "revision": revision,
            "ignore": None if request.ignore is None else list(request.ignore),
            "endpoint": request.endpoint,
            "job_id": request.job_id,
            "files": [
                {"path": file.path, "bytes": file.size, "tag": file.tag, "digest": file.digest or None}
                for file in selection.files
            ],
        }

    def adopt(self, known: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """Record that this job uses the existing files, so that its restarts keep them. Needs the lock.

        Raises:
            OSError: the target cannot be written to.
        """
        renewed = {**record, "time": known.get("time")}
        if renewed != known:
            write_json(self.path / RECORD, renewed)
            _share(self.path / RECORD)

    def staging(self, record: Mapping[str, Any]) -> Staging:
        """Return the folder where this content is prepared, and remove those of other contents. Needs the lock.

        Raises:
            OSError: the workspace cannot be written to.
        """
        content = json.dumps([record["uri"], record["revision"], record["files"]], sort_keys=True)
        key = hashlib.sha256(content.encode()).hexdigest()[:12]
        folder = self._own / f"{self.request.kind}-{key}"
        for other in self._own.glob(f"{self.request.kind}-*"):
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
        folder.mkdir(exist_ok=True)
        return Staging(folder)

    def publish(self, staging: Staging, record: Mapping[str, Any]) -> None:
        """Replace the target with the finished folder in one step. Needs the lock.

        Raises:
            RunError: the target cannot be replaced (78).
        """
        write_json(staging.whole / RECORD, {**record, "time": timestamp()})
        for path in (staging.whole, *staging.whole.rglob("*")):
            _share(path)
        old = staging.path / "old"
        try:
            if self.path.exists() and not self.is_empty():
                shutil.rmtree(old, ignore_errors=True)
                self.path.rename(old)
            staging.whole.rename(self.path)
        except OSError as error:
            raise RunError(
                ExitCode.CONFIG,
                f"{self.path} cannot be created ({error.strerror}): mount the volume `initializer` at "
                f"{self.path.parent}, not below it",
            ) from error
        shutil.rmtree(staging.path, ignore_errors=True)


class Staging:
    """The folder where a target is prepared.

    Attributes:
        path: the folder.
        whole: complete and verified files, at their final paths.
        unfinished: the source's folder for unfinished files.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.whole = path / "whole"
        self.unfinished = path / "unfinished"
        for folder in (self.whole, self.unfinished):
            folder.mkdir(parents=True, exist_ok=True)

    def has(self, file: File) -> bool:
        """Return whether a file is complete and verified."""
        try:
            return (self.whole / file.path).stat().st_size == file.size
        except OSError:
            return False

    def take(self, file: File, fetched: Path) -> None:
        """Move a verified file to its place."""
        place = self.whole / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        fetched.rename(place)

    def bytes(self) -> int:
        """Return how many bytes are on the disk so far."""
        total = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                try:
                    total += Path(folder, name).lstat().st_size
                except OSError:  # renamed while we look
                    continue
        return total


def recorded_content(path: Path, is_model: bool) -> str:
    """Return a short digest of what was fetched to a path or to a folder above it, the same for the same content.

    What is written for people, such as a license or a model's card, does not count. A data set's card does: it may
    say which files are its rows. Another kind of store may name the same content otherwise. Empty if nothing was
    fetched there.

    Args:
        path: what a run reads.
        is_model: it is a model, not a data set.
    """
    records = (read_json(folder / RECORD) for folder in (path, *path.parents))
    record: Any = next((found for found in records if found is not None), {})
    try:
        # A tag may change where the content stays.
        files = [
            (file["path"], file["bytes"], file["digest"] or file["tag"])
            for file in record["files"]
            if not (_FOR_PEOPLE.search(file["path"]) or (is_model and file["path"] == _CARD))
        ]
    except (KeyError, TypeError):
        return ""
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()[:12] if files else ""


def mismatch(file: File, path: Path) -> str | None:
    """Return how a fetched file differs from its description in the source; None if it does not.

    Raises:
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    if size != file.size:
        return f"it has {size} of {file.size} bytes"
    algorithm, _, expected = file.digest.partition(":")
    if not expected:
        return None
    # Git's name of a blob is the SHA-1 of a header and the content.
    total = hashlib.sha1(f"blob {size}\0".encode()) if algorithm == "git" else hashlib.new(algorithm)
    with path.open("rb") as stream:
        while block := stream.read(2**20):
            total.update(block)
    return None if total.hexdigest() == expected else f"its {algorithm} checksum is not {expected}"


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        say("this volume has no file locks: do not let two pods fetch into it at the same time")
    return True


def _share(path: Path) -> None:
    """Let group 0 read and write a path, since other pods may run as other users."""
    try:
        share_with_group(path)
        if path.is_dir():
            path.chmod(path.stat().st_mode | 0o070)
    except PermissionError:  # it belongs to another user, who has shared it
        return
