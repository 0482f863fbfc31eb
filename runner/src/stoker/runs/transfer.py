"""Brings files out of a pod: in ranges, going on where an earlier try broke off, each compared by its SHA-256."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import LOST_AND_FOUND, read_json, write_json
from stoker.contract.manifest import BESIDE_THE_RESULT
from stoker.runs.errors import ClusterError, CommandError, UnreachableError

# What a run appends to while it goes on: as much of it comes as there was in the list.
_GROWING = ("*.jsonl", "*.tfevents.*")
# The client keeps what one command sends in memory.
_RANGE = 32 << 20
_BLOCK = 1 << 20
_TRIES = 3
MARK = ".stoker-get.json"

# What runs in the pod, by any Python 3. What takes long writes to standard error at times: silence is a broken line.
_LIST = """
import json, os, sys
def failed(error):
    # Checkpoints go while a run goes on.
    if not isinstance(error, FileNotFoundError) or error.filename == sys.argv[1]:
        sys.exit(str(error))
for folder, folders, names in os.walk(sys.argv[1], onerror=failed):
    folders[:] = sorted(name for name in folders if name != sys.argv[2])
    for name in sorted(names):
        path = os.path.join(folder, name)
        if os.path.isfile(path) and not os.path.islink(path):
            try:
                size = os.path.getsize(path)
            except FileNotFoundError:
                continue
            print(json.dumps([os.path.relpath(path, sys.argv[1]), size]))
"""
_SEND = """
import sys
with open(sys.argv[1], "rb") as file:
    file.seek(int(sys.argv[2]))
    left = int(sys.argv[3])
    while left > 0 and (data := file.read(min(left, 1 << 20))):
        sys.stdout.buffer.write(data)
        left -= len(data)
"""
_SUM = """
import hashlib, sys
total, left, count = hashlib.sha256(), int(sys.argv[2]), 0
with open(sys.argv[1], "rb") as file:
    while left > 0 and (data := file.read(min(left, 1 << 20))):
        total.update(data)
        left -= len(data)
        count += 1
        if count % 1024 == 0:
            sys.stderr.write("\\n")
            sys.stderr.flush()
print(total.hexdigest())
"""
_NO_PYTHON = "python3-is-missing"
_PYTHON = f'exec "$(command -v python3 || command -v python || echo {_NO_PYTHON})" -c "$0" "$@"'

Execute = Callable[[Sequence[str]], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of the run.

    Attributes:
        path: its path below the folder.
        size: in bytes.
    """

    path: str
    size: int


def remote_files(execute: Execute, root: str) -> list[RemoteFile]:
    """Return the files below a folder of the pod.

    Raises:
        RunError: there is no such folder, or a path leads out of it.
    """
    try:
        text = _said(execute, _python(_LIST, root, LOST_AND_FOUND))
    except ClusterError as error:
        if "No such file" in error.message:
            raise RunError(
                ExitCode.NO_INPUT,
                f"the run's claim has no folder {root}: it has no result yet; --path names another one",
            ) from error
        if _NO_PYTHON in error.message:
            raise RunError(
                ExitCode.CONFIG,
                "the image of the pod that reads the claim has no Python: name one that has it with --image",
            ) from error
        if "Permission denied" in error.message:
            raise RunError(
                ExitCode.CONFIG,
                f"{error.message}: the run wrote files that only their owner may read, and the pod runs as another "
                "user; give them to all from a pod of that user (chmod --recursive go+rX)",
            ) from error
        raise
    found = []
    for line in text.splitlines():
        path, size = json.loads(line)
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise RunError(ExitCode.BAD_DATA, f"{path!r} leads out of the run's folder: nothing was written")
        found.append(RemoteFile(path, int(size)))
    return found


def chosen(files: Iterable[RemoteFile], only: Sequence[str], everything: bool) -> list[RemoteFile]:
    """Return the files to bring.

    Args:
        files: all files.
        only: patterns of paths or of names; none for all.
        everything: True to bring checkpoints too.
    """
    return [
        file
        for file in files
        if (any(_fits(file.path, pattern) for pattern in only) if only else everything or not _left_out(file.path))
    ]


def claim_folder(folder: Path, identity: dict[str, str]) -> None:
    """Mark a folder as that of one run's files, so that two runs never mix in it.

    Raises:
        RunError: it has another run's files, or files that no run brought.
        OSError: it cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = read_json(folder / MARK)
    if before is None and any(folder.iterdir()):
        raise RunError(ExitCode.USAGE, f"{folder} has files already: name a new or empty folder")
    if before is not None and before != identity:
        told = before if isinstance(before, dict) else {}
        other = f"another run, {told.get('run')} (claim {told.get('claim')})" if told else "something else"
        if {**told, "path": ""} == {**identity, "path": ""}:
            other = f"{told.get('path')} of this run"
        raise RunError(ExitCode.USAGE, f"{folder} has the files of {other}: name another folder")
    write_json(folder / MARK, identity)


def bring(execute: Execute, root: str, file: RemoteFile, folder: Path, told: Callable[[int], None]) -> bool:
    """Bring one file; what an earlier try has brought is kept.

    Args:
        execute: runs a command in the pod.
        root: the folder in the pod.
        file: the file.
        folder: where it goes.
        told: called with the number of bytes that have come.

    Returns:
        False if it was there already.

    Raises:
        ClusterError: the pod does not answer, or the file changes all the time, or is gone.
        OSError: the file cannot be written.
    """
    target, source = folder / file.path, f"{root}/{file.path}"
    growing = any(fnmatchcase(target.name, pattern) for pattern in _GROWING)
    summed = file.size if growing else sys.maxsize
    target.parent.mkdir(parents=True, exist_ok=True)
    whole = target if target.exists() else None
    if whole and whole.stat().st_size == file.size and _sum(whole) == _remote_sum(execute, source, summed):
        told(file.size)
        return False
    draft = target.with_name(f"{target.name}.part")
    if draft.exists() and draft.stat().st_size > file.size:
        draft.unlink()
    for attempt in range(_TRIES):
        try:
            _append(execute, source, file.size, draft, told)
            if draft.stat().st_size == file.size and _sum(draft) == _remote_sum(execute, source, summed):
                draft.replace(target)
                return True
            draft.unlink()
        except UnreachableError:
            if attempt == _TRIES - 1:
                raise
        except CommandError as error:
            if "FileNotFoundError" not in error.message:
                raise
            draft.unlink(missing_ok=True)
            raise ClusterError(
                ExitCode.UNAVAILABLE,
                f"{file.path} is gone: the run has removed it meanwhile, as it does with old checkpoints. Delete what "
                f"came of its folder ({target.parent}), and repeat the command",
            ) from error
    raise ClusterError(
        ExitCode.UNAVAILABLE,
        f"{file.path} differs from the cluster's after {_TRIES} tries: the run still writes it, so try later",
    )


def _append(execute: Execute, source: str, size: int, draft: Path, told: Callable[[int], None]) -> None:
    with draft.open("ab") as stream:
        at = stream.tell()
        told(at)
        while at < size:
            before = at
            for data in execute(_python(_SEND, source, str(at), str(min(_RANGE, size - at)))):
                stream.write(data)
                at += len(data)
                told(len(data))
            if at == before:  # it has become shorter
                return


def _sum(path: Path) -> str:
    total = hashlib.sha256()
    with path.open("rb") as stream:
        while data := stream.read(_BLOCK):
            total.update(data)
    return total.hexdigest()


def _remote_sum(execute: Execute, source: str, size: int) -> str:
    """Return the SHA-256 of a file's first so many bytes."""
    return _said(execute, _python(_SUM, source, str(size))).strip()


def _said(execute: Execute, command: Sequence[str]) -> str:
    """Return what a command writes; it is asked again if the connection breaks off."""
    for _ in range(_TRIES - 1):
        with suppress(UnreachableError):
            return b"".join(execute(command)).decode("utf-8", "replace")
    return b"".join(execute(command)).decode("utf-8", "replace")


def _python(program: str, *words: str) -> list[str]:
    return ["sh", "-c", _PYTHON, program, *words]


def _left_out(path: str) -> bool:
    return any(folder.startswith(BESIDE_THE_RESULT) for folder in PurePosixPath(path).parts[:-1])


def _fits(path: str, pattern: str) -> bool:
    clean = pattern.rstrip("/")
    return fnmatchcase(path, clean) or fnmatchcase(path, f"{clean}/*") or fnmatchcase(PurePosixPath(path).name, clean)
