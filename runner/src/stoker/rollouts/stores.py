"""Where the samplers of a run find its versions: adapters by name, or whole weights that replace each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from stoker.contract.exits import RunError
from stoker.contract.words import say
from stoker.serve.adapters import live
from stoker.serve.weights import files

Job_contra = TypeVar("Job_contra", contravariant=True)


class Store(Protocol[Job_contra]):
    """Writes versions. Only the thread of the publisher calls it."""

    @property
    def untidy(self) -> bool:
        """True if there may be something to remove."""
        ...

    def write(self, version: int, job: Job_contra) -> Mapping[str, float]:
        """Write a version for the samplers, and return numbers about its files.

        Raises:
            RunError: it cannot be written.
        """
        ...

    def mend(self, version: int) -> bool:
        """Write the newest version in another way, if there is one that is left.

        Raises:
            RunError: it cannot be written.
        """
        ...

    def tidy(self, settled: int, in_use: frozenset[int]) -> None:
        """Remove what is older than a version that every ready sampler serves, unless it is in use."""
        ...

    def clear(self) -> None:
        """Remove everything.

        Raises:
            OSError: the folder cannot be written to.
        """
        ...


class Adapters:
    """Adapters, each under a name of its own.

    Args:
        folder: the samplers' folder of published versions.
        name: the name of the run's versions, as `stoker.serve.adapters.live.claim` gave it.
        base_model: `name_or_path` and `revision` of the base model, for the manifests.
    """

    def __init__(self, folder: Path, name: str, base_model: Mapping[str, str | None]) -> None:
        self._folder, self._name, self._base_model = folder, name, base_model
        self._there: set[int] = set()  # versions whose folders exist

    @property
    def untidy(self) -> bool:
        """True if there is more than the newest version."""
        return len(self._there) > 1

    def write(self, version: int, job: Callable[[Path], None]) -> Mapping[str, float]:
        """Write a version. The job writes it, as PEFT does, into the folder that it is given."""
        live.publish(self._folder, self._name, version, job, self._base_model)
        self._there.add(version)
        return {}

    def mend(self, version: int) -> bool:
        """Return False: an adapter is whole."""
        return False

    def tidy(self, settled: int, in_use: frozenset[int]) -> None:
        """Remove versions that no request names."""
        for version in sorted(self._there - in_use):
            if version < settled:
                try:
                    live.retract(self._folder, self._name, version)
                except RunError as error:
                    say(f"{self._name}:{version} could not be removed, and is tried again: {error}")
                    continue
                self._there.discard(version)

    def clear(self) -> None:
        """Remove everything."""
        live.clear(self._folder, self._name)


class Change(Protocol):
    """What differs between two versions.

    Attributes:
        bytes: of its file.
        doubt: why it is not plausible; empty if it is.
        numbers: about it, by name.
    """

    @property
    def bytes(self) -> int: ...

    @property
    def doubt(self) -> str: ...

    @property
    def numbers(self) -> Mapping[str, float]: ...


class Snapshot(Protocol):
    """All weights of a version, in memory.

    Attributes:
        bytes: of its whole file.
    """

    @property
    def bytes(self) -> int: ...

    def since(self, earlier: Snapshot) -> Change:
        """Return what has changed since an earlier version of the same model."""
        ...

    def write(self, folder: Path, name: str, earlier: str = "", change: Change | None = None) -> None:
        """Write checksums and tensors: all, or only what has changed.

        Args:
            folder: where to.
            name: of this version.
            earlier: name of the version that the change is to.
            change: what has changed; None for all.
        """
        ...


# A difference that is not much smaller than the whole is written as the whole: nobody needs the one before then.
_SMALLER = 0.9


class WholeWeights:
    """All weights: the first version whole, then differences, and again a whole one from time to time.

    Args:
        folder: the samplers' folder of published versions.
        name: the name of the run's versions, as `stoker.serve.adapters.live.claim` gave it.
        every: versions from one whole one to the next.
    """

    def __init__(self, folder: Path, name: str, every: int) -> None:
        self._folder, self._name, self._every = folder / name, name, every
        self._newest: tuple[int, Snapshot] | None = None
        self._since_whole = 0
        self._whole: list[int] = []  # versions that are there as a whole

    @property
    def untidy(self) -> bool:
        """True if there is more than one whole version."""
        return len(self._whole) > 1

    def write(self, version: int, job: Snapshot) -> Mapping[str, float]:
        """Write a version, as a whole or as the difference to the one before."""
        change = None if self._newest is None else job.since(self._newest[1])
        numbers = {} if change is None else dict(change.numbers)
        if change is not None and change.doubt:
            say(f"version {version}: {change.doubt}")
        if change is not None and self._since_whole + 1 < self._every and change.bytes < _SMALLER * job.bytes:
            assert self._newest is not None
            before = self._newest[0]
            files.place(
                self._folder,
                version,
                before,
                lambda draft: job.write(draft, self._named(version), self._named(before), change),
            )
            self._since_whole += 1
        else:
            change = None  # may be as large as the weights
            self._write_whole(version, job)
        self._newest = (version, job)
        return {**numbers, "bytes": float((change or job).bytes), "whole": float(change is None)}

    def mend(self, version: int) -> bool:
        """Write the newest version as a whole, unless it is there as one."""
        if self._newest is None or version != self._newest[0] or version in self._whole:
            return False
        self._write_whole(*self._newest)
        return True

    def tidy(self, settled: int, in_use: frozenset[int]) -> None:
        """Remove what is older than the newest whole version that every ready sampler serves: late ones begin there."""
        begin = max((version for version in self._whole if version <= settled), default=None)
        if begin is None or begin == self._whole[0]:
            return
        try:
            old = [file for file in files.read(self._folder) if file.version < begin]
        except OSError as error:
            say(f"{self._folder} cannot be tidied, which is tried again: {error}")
            return
        for file in old:
            files.remove(file)
        self._whole = [version for version in self._whole if version >= begin]

    def clear(self) -> None:
        """Remove everything."""
        live.clear(self._folder.parent, self._name)

    def _write_whole(self, version: int, job: Snapshot) -> None:
        files.place(self._folder, version, None, lambda draft: job.write(draft, self._named(version)))
        self._since_whole = 0
        self._whole.append(version)

    def _named(self, version: int) -> str:
        return f"{self._name}:{version}"
