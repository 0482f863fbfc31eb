"""Checkpoints by the names that clients give them: `tinker://RUN/weights/NAME`, always inside the run's folder."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stoker.tinker.refusals import RefusedError

WEIGHTS, SAMPLER_WEIGHTS = "weights", "sampler_weights"
_SCHEME = "tinker://"
_KINDS = (WEIGHTS, SAMPLER_WEIGHTS)
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_-]{0,127}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class CheckpointPath:
    """A checkpoint's place.

    Attributes:
        run: the model that it was saved from.
        kind: `weights` to train on, `sampler_weights` to sample from.
        name: as the client called it.
    """

    run: str
    kind: str
    name: str

    @property
    def uri(self) -> str:
        """The place as clients write it."""
        return f"{_SCHEME}{self.run}/{self.kind}/{self.name}"


def checkpoint_at(uri: str) -> CheckpointPath:
    """Return the place that a client means.

    Raises:
        RefusedError: it is not written as one.
    """
    parts = uri.removeprefix(_SCHEME).split("/") if uri.startswith(_SCHEME) else []
    if len(parts) != 3 or parts[1] not in _KINDS or not _RUN.fullmatch(parts[0]):
        raise RefusedError(
            f"{uri!r} is not a checkpoint of this endpoint: write the path that save_state or save_weights_for_sampler "
            f"returned, such as {_SCHEME}RUN/{WEIGHTS}/NAME"
        )
    return CheckpointPath(parts[0], parts[1], checked_name(parts[2]))


def checked_name(name: str) -> str:
    """Return a checkpoint's name.

    Raises:
        RefusedError: it could leave the run's folder, or is too long.
    """
    if not _NAME.fullmatch(name):
        raise RefusedError(
            f"{name!r} is not a checkpoint's name: write up to 128 letters, digits, '.', '_' and '-', with a letter or "
            "digit first"
        )
    return name


class Checkpoints:
    """The checkpoints in a folder.

    Args:
        folder: the run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()

    def find(self, checkpoint: CheckpointPath) -> Path:
        """Return a checkpoint's folder.

        Raises:
            RefusedError: there is none (404), or a link leads out of the run's folder.
        """
        folder = self._path(checkpoint)
        if not folder.is_dir():
            raise RefusedError(f"{checkpoint.uri} does not exist: write the path of one that was saved here", 404)
        return folder

    def save(self, checkpoint: CheckpointPath, write: Callable[[Path], None], *, overwrite: bool = False) -> None:
        """Save a checkpoint: others see all of it or nothing.

        Args:
            checkpoint: its place.
            write: fills the folder that it is given.
            overwrite: replace one of that name.

        Raises:
            RefusedError: the name is taken.
        """
        folder = self._path(checkpoint)
        if folder.exists() and not overwrite:
            raise RefusedError(f"{checkpoint.uri} exists: choose another name, or save_state(…, overwrite=True)")
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder.parent))
        try:
            write(draft)
            draft.chmod(0o775)
            if folder.exists():
                # A folder cannot replace a full one in one step: the old one leaves first, and a kill between the two
                # renames leaves it beside as a draft.
                old = Path(tempfile.mkdtemp(prefix=".draft-old-", dir=folder.parent))
                folder.rename(old / folder.name)
                draft.rename(folder)
                shutil.rmtree(old, ignore_errors=True)
            else:
                draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def remove(self, checkpoint: CheckpointPath) -> None:
        """Remove a checkpoint, if it is there.

        Raises:
            RefusedError: a link leads out of the run's folder.
        """
        shutil.rmtree(self._path(checkpoint), ignore_errors=True)

    def _path(self, checkpoint: CheckpointPath) -> Path:
        folder = self._folder / checkpoint.run / checkpoint.kind / checkpoint.name
        if not folder.resolve().is_relative_to(self._folder):
            raise RefusedError(f"{checkpoint.uri} leads out of the run's folder: remove the link there")
        return folder
