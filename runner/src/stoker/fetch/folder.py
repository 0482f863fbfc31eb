"""A folder mounted into the container: `file://` and `pvc://`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import LOST_AND_FOUND
from stoker.fetch.request import CLAIMS
from stoker.fetch.selection import File
from stoker.fetch.source import FileSource, Unavailable


class Folder(FileSource):
    """A folder or a single file to copy."""

    def files(self) -> Sequence[File]:
        """List the folder. Links are followed, since their targets may not be mounted in the trainer's pods."""
        root = Path(self.request.place)
        try:
            if root.is_file():
                return [_file(root, root.name)]
            return [_file(path, str(path.relative_to(root))) for path in _walk(root)]
        except FileNotFoundError as error:
            raise RunError(
                ExitCode.NO_INPUT, f"{self.request.uri} was not found ({error.filename}): {self._advice()}"
            ) from error
        except OSError as error:
            raise RunError(
                ExitCode.NO_INPUT,
                f"user {os.getuid()} cannot read {error.filename} of {self.request.uri} ({error.strerror}): "
                "make it readable for group 0",
            ) from error

    def fetch(self, file: File, folder: Path) -> Path:
        """Copy one file."""
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not Path(file.remote).exists():
            raise RunError(
                ExitCode.NO_INPUT,
                f"{file.remote} of {self.request.uri} is a broken link: mount its target as well, "
                "or skip it with IGNORE_PATTERNS",
            )
        if not os.access(file.remote, os.R_OK):
            raise RunError(
                ExitCode.NO_INPUT,
                f"user {os.getuid()} cannot read {file.remote} of {self.request.uri}: make it readable for group 0",
            )
        shutil.copyfile(file.remote, target)
        if _file(Path(file.remote), file.path).tag != file.tag:
            raise Unavailable(f"{file.remote} of {self.request.uri} changed while it was copied")
        return target

    def _advice(self) -> str:
        place = Path(self.request.place)
        if not self.request.uri.lower().startswith("pvc:"):
            return "correct the path, or mount the volume into the initializer with the TrainJob's runtimePatches"
        claim = place.relative_to(CLAIMS).parts[0]
        return (
            f"mount the claim {claim} at {CLAIMS / claim} into the container {self.request.kind}-initializer with the "
            "TrainJob's runtimePatches, or correct the folder"
        )


def _walk(root: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(root, onerror=refuse, followlinks=True):
        here = Path(folder)
        above = {parent.resolve() for parent in here.parents if parent.is_relative_to(root)}
        if here.resolve() in above:  # a link to a parent folder
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if name != LOST_AND_FOUND)
        yield from (here / name for name in sorted(names))


def _file(path: Path, relative: str) -> File:
    # A broken link is listed too, so that it is refused unless it is skipped.
    found = path.stat() if path.exists() else path.lstat()
    return File(relative, str(path), found.st_size, str(found.st_mtime_ns))
