"""The desired states of a fleet, on a shared folder: one folder for each generation, which never changes.

Who writes a generation first has it. So several processes may write, without a lock and without an API server.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from stoker.contract.exits import RunError
from stoker.serve.adapters.versions import place, remove, settle
from stoker.serve.fleet.desired import Desired

_STATE = "state.json"
# Older generations are removed.
_KEEP = 16


class TakenError(Exception):
    """Another process wrote this generation first."""


class Log:
    """The desired states of one fleet.

    Args:
        folder: where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def newest(self, told: int = 0) -> tuple[Desired, Desired]:
        """Return the newest state, and the newest that was kept: the same one unless the newest is still tried.

        Args:
            told: a generation that is there as somebody says. A network file system may list an old content for half
                a minute, but finds a name that it never looked for.

        Raises:
            OSError: the folder cannot be read.
            ValueError: a file in it has another form.
        """
        try:
            numbers = {int(entry.name) for entry in self.folder.iterdir() if entry.name.isdecimal()}
        except FileNotFoundError:
            numbers = set()
        if told not in numbers and told > max(numbers, default=0) and (self.folder / str(told)).is_dir():
            numbers.add(told)
        newest = kept = self._read(max(numbers)) if numbers else Desired()
        while not kept.kept:
            kept = self._read(kept.generation - 1) if kept.generation > 1 else Desired()
        return newest, kept

    def append(self, desired: Desired) -> None:
        """Write the next state. Readers see all of it or nothing.

        Raises:
            TakenError: another process has written this generation.
            RunError: the folder cannot be written to (78).
        """

        def write(draft: Path) -> None:
            (draft / _STATE).write_text(desired.to_json())
            settle(draft / _STATE)

        number = desired.generation
        try:
            place(self.folder.parent, self.folder.name, number, write)
        except RunError as error:
            if (self.folder / str(number)).is_dir():
                raise TakenError(f"generation {number} is another's") from error
            raise
        with suppress(OSError):  # another process may remove them too
            for entry in [*self.folder.iterdir()]:
                if entry.name.isdecimal() and int(entry.name) <= number - _KEEP:
                    remove(entry)

    def _read(self, number: int) -> Desired:
        return Desired.from_json((self.folder / str(number) / _STATE).read_text())
