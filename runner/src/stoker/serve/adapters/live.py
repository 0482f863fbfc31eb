"""Versions of a run that still trains. Its samplers serve each of them until the run retracts it.

Every attempt of a run has a name of its own, so a version's name never means two things. The folder of that name stays
when the versions are gone, as a mark that the name was used.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.manifest import write_live_manifest
from stoker.serve.adapters.versions import Version, file_errors, named, place, refuse_words, remove, settle, share
from stoker.serve.weights.files import is_file

# Says whose versions a folder holds, since two jobs of one name may share servers.
_OWNER = ".owner"
_LONGEST = 63


def claim(folder: Path, run: str, owner: str) -> str:
    """Return a name for the versions of a new attempt, and remove what the owner's earlier attempts left.

    Args:
        folder: the servers' folder of published versions.
        run: the run's name.
        owner: what all attempts of the run have in common with no other, such as the job's id.

    Raises:
        RunError: the folder cannot be written to (78).
    """
    with file_errors(folder):
        share(folder)
        earlier = _attempts(folder, run)
        number = 1 + max(earlier, default=-1)
        while True:
            name = _attempt(run, number)
            try:
                (folder / name).mkdir()
                break
            except FileExistsError:  # another job of this name took it meanwhile
                number += 1
        (folder / name).chmod(0o775)
        (folder / name / _OWNER).write_text(owner)
        for other in earlier.values():
            with suppress(OSError):  # a leftover that cannot be removed is no reason not to train
                if (folder / other / _OWNER).read_text() == owner:
                    clear(folder, other)
    return name


def publish(
    folder: Path, name: str, number: int, write: Callable[[Path], None], base_model: Mapping[str, str | None]
) -> Version:
    """Publish a version, unless it is there: an earlier try placed it, and the volume's answer was lost.

    Args:
        folder: the servers' folder of published versions.
        name: what `claim` returned.
        number: the version, 1 or more; each one larger than those before.
        write: writes the adapter, as PEFT does, into the folder that it is given.
        base_model: its `name_or_path` and `revision`.

    Raises:
        RunError: `write` left no adapter (70), or the folder cannot be written to (78).
    """
    refuse_words(name, number)
    version = Version(name, number, folder / name / str(number))
    with file_errors(folder):
        if version.path.is_dir():
            return version

    def fill(draft: Path) -> None:
        write(draft)
        if write_live_manifest(draft, base_model)["adapter"] is None:
            raise RunError(ExitCode.CRASHED, f"version {number} of {name} has no adapter: nothing was written for it")
        for file in draft.iterdir():
            settle(file)

    return place(folder, name, number, fill)


def retract(folder: Path, name: str, number: int) -> None:
    """Remove a version, if it is there. Servers unload it.

    Raises:
        RunError: the folder cannot be written to (78).
    """
    with file_errors(folder), suppress(FileNotFoundError):
        remove(folder / name / str(number))


def clear(folder: Path, name: str) -> None:
    """Remove all versions of a name, and what was half written; the name stays taken.

    Raises:
        OSError: the folder cannot be written to.
    """
    for entry in [*(folder / name).iterdir()]:
        if named(folder, f"{name}:{entry.name}") or is_file(entry.name):
            remove(entry)
    for draft in (folder / name).glob(".draft-*"):
        shutil.rmtree(draft, ignore_errors=True)


def _attempt(run: str, number: int) -> str:
    """Return the name of an attempt: as long as servers take, and another one for each run."""
    plain = re.sub(r"[^a-z0-9._-]", "-", run.lower()).strip("._-") or "run"
    end = f"-a{number}"
    if plain != run or len(plain) + len(end) > _LONGEST:
        digest = hashlib.sha256(run.encode()).hexdigest()[:8]
        plain = f"{plain[: _LONGEST - len(end) - 9].rstrip('._-')}-{digest}"
    return plain + end


def _attempts(folder: Path, run: str) -> dict[int, str]:
    """Return the names that attempts of a run have taken, by number."""
    found = {}
    for entry in folder.iterdir():
        number = entry.name.rpartition("-a")[2]
        if number.isdecimal() and _attempt(run, int(number)) == entry.name:
            found[int(number)] = entry.name
    return found
