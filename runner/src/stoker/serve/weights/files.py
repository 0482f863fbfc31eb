"""Files of a run's whole weights: `<folder>/<run>/w<version>`, and `d<version>-<earlier>` with what has changed since.

Each is a folder that appears whole and never changes: a list of checksums, one of every tensor of the version, and
tensors. A version may be there in both forms.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stoker.contract.words import say
from stoker.serve.adapters.versions import file_errors, reveal, settle, share
from stoker.serve.adapters.versions import remove as remove_folder

CHECKSUMS, TENSORS = "weights.json", "weights.safetensors"
_NAME = re.compile(r"w(0|[1-9]\d{0,17})|d(0|[1-9]\d{0,17})-(0|[1-9]\d{0,17})")


@dataclass(frozen=True, slots=True)
class WeightsFile:
    """The files of one version.

    Attributes:
        version: the version.
        earlier: the version that it is the difference to; None if it is whole.
        path: its folder.
    """

    version: int
    earlier: int | None
    path: Path


def read(folder: Path) -> list[WeightsFile]:
    """Return what is in a run's folder; nothing if it does not exist.

    Raises:
        OSError: the folder cannot be read.
    """
    try:
        entries = [*folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for entry in entries:
        if match := _NAME.fullmatch(entry.name):
            whole, version, earlier = match.groups()
            found.append(WeightsFile(int(whole or version), int(earlier) if earlier else None, entry))
    return found


def route(files: Iterable[WeightsFile], held: int | None, bad: Collection[str] = ()) -> list[WeightsFile]:
    """Return the files that bring a replica to the newest version that it can reach, in their order. Pure.

    Differences to what it has are smaller than whole weights, so they go first where both lead to that version.

    Args:
        files: what there is.
        held: the version that it has; None if it has none of the run.
        bad: names of folders that it could not take.
    """
    usable = [file for file in files if file.path.name not in bad]
    begins: list[tuple[int, list[WeightsFile]]] = [(file.version, [file]) for file in usable if file.earlier is None]
    if held is not None:
        begins.append((held, []))
    ways = [[*begin, *_differences(usable, version)] for version, begin in begins]
    ways = [way for way in ways if way and (held is None or way[-1].version > held)]
    return max(ways, key=lambda way: (way[-1].version, way[0].earlier is not None, way[0].version), default=[])


def _differences(files: Sequence[WeightsFile], version: int) -> list[WeightsFile]:
    """Return the differences that follow on a version, one after the other."""
    found: list[WeightsFile] = []
    while True:
        following = [file for file in files if file.earlier == version and file.version > version]
        if not following:
            return found
        found.append(max(following, key=lambda file: file.version))
        version = found[-1].version


def newest_run(folder: Path) -> str:
    """Return the run that last wrote weights into a folder; empty if none did.

    Raises:
        OSError: the folder cannot be read.
    """
    found: list[tuple[float, str]] = []
    with suppress(FileNotFoundError):
        for run in folder.iterdir():
            for file in read(run):
                with suppress(FileNotFoundError):  # removed meanwhile
                    found.append((file.path.stat().st_ctime, run.name))  # a rename is the last change of the inode
    return max(found, default=(0.0, ""))[1]


def place(folder: Path, version: int, earlier: int | None, write: Callable[[Path], None]) -> WeightsFile:
    """Publish what a function writes into the folder that it is given. Readers see all of it or nothing.

    If the version is there in this form, an earlier try placed it, and the volume's answer was lost.

    Args:
        folder: the run's folder.
        version: the version.
        earlier: the version that it is the difference to; None if it is whole.
        write: writes checksums and tensors.

    Raises:
        RunError: the folder cannot be written to (78).
    """
    file = WeightsFile(version, earlier, folder / (f"w{version}" if earlier is None else f"d{version}-{earlier}"))
    with file_errors(folder):
        if file.path.is_dir():
            return file
        share(folder)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder))
        try:
            write(draft)
            for written in draft.iterdir():
                settle(written)
            draft.chmod(0o775)
            reveal(draft, file.path)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return file


def remove(file: WeightsFile) -> None:
    """Remove a version's files at once; what cannot be removed is left, and told."""
    try:
        remove_folder(file.path)
    except FileNotFoundError:
        pass
    except OSError as error:
        say(f"{file.path} could not be removed: {error}")


def is_file(name: str) -> bool:
    """Return whether a name in a run's folder is one of such files."""
    return _NAME.fullmatch(name) is not None
