"""Published versions: `<folder>/<adapter>/<version>`. Each one appears whole and never changes.

A version is a positive number. Requests name it `<adapter>:<version>`. :mod:`stoker.serve.adapters.live` publishes the
versions of a run that still trains.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import share_with_group
from stoker.contract.manifest import MANIFEST, unfinished
from stoker.serve.adapters import check
from stoker.serve.adapters.files import read_adapter

_NAME = re.compile(r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$")
_VERSION = re.compile(r"^[1-9][0-9]{0,17}$")
# Marks the number of a retracted version. A server may still know the number, so it is never used again.
_RETRACTED = ".retracted-"
# What safetensors (Rust) makes of an error of the file system, which is no OSError.
_FULL_IN_RUST = re.compile(r"no space left on device|StorageFull|disk quota exceeded", re.IGNORECASE)
_IN_RUST = re.compile(r"\(os error (\d+)\)")
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Errors that stay until somebody does something. Others, such as EIO and ESTALE, pass when the volume is back.
_STAYING = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENAMETOOLONG)


class OutageError(RunError):
    """A file system does not answer as it should, and may do so again by itself."""


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A published version.

    Attributes:
        adapter: the adapter's name.
        number: the version.
        path: its folder.
    """

    adapter: str
    number: int
    path: Path

    @property
    def name(self) -> str:
        """The name in requests."""
        return f"{self.adapter}:{self.number}"


def read_published(folder: Path) -> list[Version]:
    """Return all versions in a folder, oldest first; none if the folder does not exist yet.

    Raises:
        OSError: the folder cannot be read.
    """
    try:
        adapters = sorted(entry for entry in folder.iterdir() if _NAME.match(entry.name) and entry.is_dir())
    except FileNotFoundError:
        return []
    found = []
    for adapter in adapters:
        try:
            names = [entry.name for entry in adapter.iterdir()]
        except FileNotFoundError:  # removed meanwhile
            continue
        found += [Version(adapter.name, int(name), adapter / name) for name in names if _VERSION.match(name)]
    return sorted(found)


def named(folder: Path, name: str) -> Version | None:
    """Return the version that a name in requests stands for; None if it is not the name of a version."""
    adapter, _, number = name.partition(":")
    if not _NAME.fullmatch(adapter) or not _VERSION.fullmatch(number):
        return None
    return Version(adapter, int(number), folder / adapter / number)


def publish(output: Path, folder: Path, adapter: str, number: int | None = None) -> Version:
    """Publish a finished run's adapter as a new version. Readers see all of it or nothing.

    Args:
        output: the run's output folder.
        folder: the servers' folder of published versions.
        adapter: the adapter's name.
        number: its version; the next one by default.

    Raises:
        RunError: a name is wrong (64), the run has no adapter or has not finished (66), the adapter is broken (65), the
            version exists or was retracted, or the folder cannot be written to (78).
    """
    refuse_words(adapter, number)
    if not (output / MANIFEST).is_file():
        raise RunError(
            ExitCode.NO_INPUT,
            f"{output / MANIFEST} is missing: wait until the run has finished, or name its output folder",
        )
    with file_errors(output):
        source = read_adapter(output)
    if source.damage:
        raise RunError(ExitCode.BAD_DATA, "\n".join(f"{output}: {line}" for line in source.damage))
    if not source.manifest or source.manifest.get("adapter") is None:
        raise RunError(
            ExitCode.NO_INPUT, f"{output} has no adapter: its run trained the whole model; serve it as the model"
        )
    if problem := unfinished(source.manifest):
        raise RunError(ExitCode.NO_INPUT, f"{output}: {problem}")
    if check.snapped(check.rank_of(source)) is None:
        raise RunError(
            ExitCode.CONFIG,
            f"rank {check.rank_of(source)} is too large: vLLM serves ranks up to {check.ALLOWED_RANKS[-1]}",
        )
    names = [entry["path"] for entry in source.manifest["files"]]
    return place(folder, adapter, number, lambda draft: _copy(output, draft, names))


def place(folder: Path, adapter: str, number: int | None, write: Callable[[Path], None]) -> Version:
    """Publish what a function writes into the folder that it is given. Readers see all of it or nothing.

    Raises:
        RunError: the version exists or was retracted, or the folder cannot be written to (78).
    """
    target = folder / adapter
    with file_errors(folder):
        share(target)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=target))
        try:
            write(draft)
            draft.chmod(0o775)
            return Version(adapter, placed := _place(draft, target, number), target / str(placed))
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def refuse_words(adapter: str, number: int | None) -> None:
    """Refuse (64) a name or a version that servers would ignore."""
    if not _NAME.fullmatch(adapter):
        raise RunError(
            ExitCode.USAGE,
            f"adapter name {adapter!r} is wrong: use up to 63 small letters and digits, with '.', '_' and '-' inside",
        )
    if number is not None and not _VERSION.fullmatch(str(number)):
        raise RunError(ExitCode.USAGE, f"version {number} is wrong: use a number from 1, with at most 18 digits")


def share(folder: Path) -> None:
    """Make a folder and its parents open to the group: the next publisher may be another user."""
    if folder.is_dir():
        return
    share(folder.parent)
    try:
        folder.mkdir()
    except FileExistsError:  # another publisher made it meanwhile
        return
    folder.chmod(folder.stat().st_mode | stat.S_IRWXG)


@contextmanager
def file_errors(folder: Path) -> Iterator[None]:
    """Turn errors of the file system into messages.

    Raises:
        RunError: 78, the folder cannot be read or written; 75 and `OutageError`, it cannot for now.
    """
    try:
        yield
    except RunError:
        raise
    except Exception as error:
        number = _number_of(error)
        if number is None and not isinstance(error, OSError):
            raise
        why = str(error) if number is None else os.strerror(number)
        if number in _FULL:  # the error may name the file that is copied
            advice = "enlarge it, or retract old versions (`stoker adapters retract`)"
            raise RunError(ExitCode.CONFIG, f"{folder} is full ({why}): {advice}") from error
        what = f"{getattr(error, 'filename', None) or folder} cannot be read or written ({why})"
        if number is None or number in _STAYING:
            advice = "mount it, writable for group 0, or name another folder"
            raise RunError(ExitCode.CONFIG, f"{what}: {advice}") from error
        raise OutageError(ExitCode.STOPPED, f"{what}: look at its volume, and try again when it is back") from error


def _number_of(error: Exception) -> int | None:
    """Return the number of an error of the file system; None if it has none."""
    if isinstance(error, OSError):
        return error.errno
    if _FULL_IN_RUST.search(str(error)):
        return errno.ENOSPC
    found = _IN_RUST.search(str(error))
    return int(found[1]) if found else None


def _copy(output: Path, draft: Path, names: list[str]) -> None:
    """Copy a run's files to the disk, the manifest last. Files such as a model card may be missing."""
    for name in [*(name for name in names if (output / name).exists()), MANIFEST]:
        shutil.copyfile(output / name, draft / name)
        settle(draft / name)


def settle(file: Path) -> None:
    """Let the group use a file, and wait until it is on the disk."""
    share_with_group(file)
    with file.open("rb") as stream:
        os.fsync(stream.fileno())


def reveal(draft: Path, path: Path) -> None:
    """Give a draft its name, or a version that of a draft.

    If the answer to a rename is lost, NFS asks again, and is told that there is no such folder. Where it gives up
    (`soft`), the rename fails with EIO or ETIMEDOUT although it was done.

    Raises:
        OSError: it keeps its name, or nothing is known of it.
    """
    try:
        draft.rename(path)
    except OSError:
        if draft.exists() or not path.exists():
            raise


def _place(draft: Path, target: Path, number: int | None) -> int:
    """Give a draft its number. If another publisher takes the number first, the rename fails."""
    while True:
        names = {entry.name for entry in target.iterdir()}
        taken = (name.removeprefix(_RETRACTED) for name in names)
        chosen = 1 + max((int(name) for name in taken if _VERSION.match(name)), default=0) if number is None else number
        if f"{_RETRACTED}{chosen}" in names:
            raise RunError(
                ExitCode.CONFIG, f"{target.name}:{chosen} was retracted, and a version never changes: use a new number"
            )
        try:
            reveal(draft, target / str(chosen))
        except OSError as error:
            if not (target / str(chosen)).exists():
                raise
            if number is not None:
                raise RunError(
                    ExitCode.CONFIG, f"{target.name}:{number} exists, and a version never changes: use a new number"
                ) from error
        else:
            return chosen


def retract(folder: Path, adapter: str, number: int) -> None:
    """Remove a version. Servers unload it.

    Raises:
        RunError: the name or number is wrong (64), the version does not exist (66), or the folder cannot be written to
            (78).
    """
    refuse_words(adapter, number)
    path = folder / adapter / str(number)
    if not path.is_dir():
        raise RunError(ExitCode.NO_INPUT, f"{folder} has no version {adapter}:{number}")
    with file_errors(folder):
        path.with_name(f"{_RETRACTED}{number}").touch()
        remove(path)


def retract_all(folder: Path, adapter: str) -> None:
    """Remove all versions of an adapter. Servers unload them.

    Raises:
        RunError: the name is wrong (64), there is no version (66), or the folder cannot be written to (78).
    """
    refuse_words(adapter, None)
    with file_errors(folder):
        numbers = [version.number for version in read_published(folder) if version.adapter == adapter]
    if not numbers:
        raise RunError(ExitCode.NO_INPUT, f"{folder} has no version of {adapter}")
    for number in numbers:
        retract(folder, adapter, number)


def remove(version: Path) -> None:
    """Remove the folder of a version at once.

    Raises:
        OSError: the folder around it cannot be written to.
    """
    gone = version.with_name(f".draft-retracted-{version.name}-{os.getpid()}")
    reveal(version, gone)
    shutil.rmtree(gone)
