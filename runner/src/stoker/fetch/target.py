"""The folder that a model or data set is put into: whole, verified and told apart from any other, or not there.

Files come into `<workspace>/.stoker/fetch/<kind>-<key>`, the key naming the source and exactly what it held. A fetch
that is interrupted goes on there. The whole is then renamed to the target in one step, with a record in it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import read_json, share_with_group, write_json
from stoker.contract.words import say
from stoker.fetch.request import FetchRequest
from stoker.fetch.selection import RECORD, File, Selection

_LOCK_POLL_SECONDS = 1.0
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


class Target:
    """The target of a request, and the folder where it is made.

    Args:
        request: what is fetched.
    """

    def __init__(self, request: FetchRequest) -> None:
        self.request = request
        self.path = request.target
        self._own = request.target.parent / ".stoker" / "fetch"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the target's lock: of several pods that share the volume one fetches and the others wait.

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
                f"{error.filename or path} cannot be written by user {os.getuid()} ({error.strerror}): mount the "
                f"volume `initializer` at {self.path.parent}, writable for group 0",
            ) from error
        with stream:
            _share(path)
            waiting = False
            while not _lock(stream.fileno()):
                if not waiting:
                    say(f"another pod is at {self.path}: waiting for it")
                waiting = True
                time.sleep(_LOCK_POLL_SECONDS)
            yield

    def record(self) -> dict[str, Any] | None:
        """Return what the target's record says, None if what it names is not there whole."""
        found = read_json(self.path / RECORD)
        if not isinstance(found, dict) or not isinstance(found.get("files"), list):
            return None
        try:
            whole = all((self.path / file["path"]).stat().st_size == file["bytes"] for file in found["files"])
        except (OSError, KeyError, TypeError):
            return None
        return found if whole else None

    def is_empty(self) -> bool:
        """Return whether nothing is in the target that would be lost."""
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
            "job_id": request.job_id,
            "files": [
                {"path": file.path, "bytes": file.size, "tag": file.tag, "digest": file.digest or None}
                for file in selection.files
            ],
        }

    def adopt(self, known: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """Make what is there this job's own, so that its restarts keep it too. Needs the lock.

        Raises:
            OSError: the target cannot be written to.
        """
        renewed = {**record, "time": known.get("time")}
        if renewed != known:
            write_json(self.path / RECORD, renewed)
            _share(self.path / RECORD)

    def staging(self, record: Mapping[str, Any]) -> Staging:
        """Return the folder where this content is made; those of other contents are removed. Needs the lock.

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
        """Put what was made in the place of the target in one step. Needs the lock.

        Raises:
            RunError: the target cannot be replaced (78).
        """
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        write_json(staging.whole / RECORD, {**record, "time": now})
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
                f"{self.path} cannot be made ({error.strerror}): mount the volume `initializer` at "
                f"{self.path.parent}, not below it",
            ) from error
        shutil.rmtree(staging.path, ignore_errors=True)


class Staging:
    """A folder in which a target is made.

    Attributes:
        path: the folder.
        whole: files that are complete and verified, at their places.
        unfinished: the source's own folder for files on their way.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.whole = path / "whole"
        self.unfinished = path / "unfinished"
        for folder in (self.whole, self.unfinished):
            folder.mkdir(parents=True, exist_ok=True)

    def has(self, file: File) -> bool:
        """Return whether a file is there, complete and verified."""
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
        """Return how much is on the disk so far."""
        total = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                try:
                    total += Path(folder, name).lstat().st_size
                except OSError:  # renamed while we look
                    continue
        return total


def mismatch(file: File, path: Path) -> str | None:
    """Return how a fetched file differs from what its source says of it, None if it does not.

    Raises:
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    if size != file.size:
        return f"it has {size} bytes of {file.size}"
    algorithm, _, expected = file.digest.partition(":")
    if not expected:
        return None
    # Git names a blob by the SHA-1 of a header and its content.
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
        say("this volume has no locks: two pods that fetch into it at once would disturb each other")
    return True


def _share(path: Path) -> None:
    """Let group 0 read and write what another pod's user may have to read or remove."""
    try:
        share_with_group(path)
        if path.is_dir():
            path.chmod(path.stat().st_mode | 0o070)
    except PermissionError:  # another user's, who has done it
        return
