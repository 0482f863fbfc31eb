"""What a source of files can do, and how its failures are told apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from stoker.fetch.request import FetchRequest
from stoker.fetch.selection import File

# What to do where a store's client library is missing.
INSTALL = "use the image `fetch`, or from a checkout, pip install './runner[fetch]'"


class Unavailable(Exception):  # noqa: N818 - it says what is the case, as the exit code does
    """The source did not answer, or not to the end: worth another try."""


class FileSource(ABC):
    """A place that files come from.

    Every method raises `Unavailable` for what another try may mend and `RunError` for what it cannot.
    """

    def __init__(self, request: FetchRequest) -> None:
        self.request = request

    @abstractmethod
    def files(self) -> Sequence[File]:
        """Return all files below the place that was asked for."""

    @property
    def revision(self) -> str | None:
        """The exact revision that `files` listed; None where there are none."""
        return None

    def is_digest(self, file: File) -> bool:
        """Return whether a file's digest is one; asked when a file does not match it."""
        return True

    @abstractmethod
    def fetch(self, file: File, folder: Path) -> Path:
        """Bring one file into a folder, going on from what an earlier try left there, and return where it lies.

        Args:
            file: the file as listed.
            folder: holds unfinished files; what is in it is this source's own affair.
        """
