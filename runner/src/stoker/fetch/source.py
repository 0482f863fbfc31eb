"""The interface of a source of files, and how it reports failures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from stoker.contract.packages import from_checkout
from stoker.fetch.request import FetchRequest
from stoker.fetch.selection import File

# What to do where a store's client library is missing.
INSTALL = f"use the image `fetch`, or {from_checkout('fetch')}"


class Unavailable(Exception):  # noqa: N818 - named after the exit code
    """The source did not answer, or broke off: worth another try."""


class FileSource(ABC):
    """A place that files come from.

    Every method raises `Unavailable` if another try may help, and `RunError` if it cannot.
    """

    def __init__(self, request: FetchRequest) -> None:
        self.request = request

    @abstractmethod
    def files(self) -> Sequence[File]:
        """Return all files below the requested place."""

    @property
    def revision(self) -> str | None:
        """The exact revision that `files` listed; None if the source has no revisions."""
        return None

    def is_digest(self, file: File) -> bool:
        """Return whether a file's digest can be trusted; asked when a file does not match it."""
        return True

    def tidy(self, folder: Path) -> None:  # noqa: B027 - most sources have nothing to remove
        """Remove what earlier tries left in the folder for unfinished files and no later one can continue."""

    @abstractmethod
    def fetch(self, file: File, folder: Path) -> Path:
        """Fetch one file into a folder, continuing an earlier try, and return its path.

        Args:
            file: the file as listed.
            folder: holds unfinished files; its layout is up to the source.
        """
