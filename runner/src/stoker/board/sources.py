"""What runs have left in folders: claims in a pod, or what `stoker get` brought. Nothing in it is trusted."""

from __future__ import annotations

import json
import math
import os
import stat
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from stoker.contract.evaluation import EVALUATION
from stoker.contract.manifest import ADAPTER_CONFIG, MANIFEST
from stoker.contract.metrics import METRICS, REPORT

# How far below a claim's root runs lie: TEAM/RUN/output. How many folders are looked at, and runs and adapters shown.
_DEPTH, _MOST_FOLDERS, _MOST_RUNS, _MOST_ADAPTERS = 3, 2000, 500, 100
# Larger files are not what they are called.
_MOST_BYTES = 16 << 20
# The end of a file of metrics: it has the newest numbers.
_TAIL_BYTES = 1 << 16
_OUTPUT = "output"
_CLAIM_OF_A_RUN = "initializer-"


class OutsideError(ValueError):
    """A file leads out of its source."""


@dataclass(frozen=True, slots=True)
class ResultFolder:
    """A folder in which runs may have left something.

    Attributes:
        name: the claim's name, or the folder's.
        namespace: of the runs that it belongs to.
        root: where it is.
        below: where that is in the claim; empty for the claim's root.
    """

    name: str
    namespace: str
    root: Path
    below: str = ""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The output folder of a run.

    Attributes:
        source: where it is.
        path: its path there, such as `output`; empty for the source itself.
        facts: what its manifest says; empty while it trains.
        last: the newest value of each metric.
        drawn: whether it has metrics.
        reported: whether it has a report.
        changed: when something in it changed last, in seconds.
    """

    source: ResultFolder
    path: str
    facts: Mapping[str, Any]
    last: Mapping[str, float]
    drawn: bool
    reported: bool
    changed: float

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self.source.root / self.path

    @property
    def run(self) -> str:
        """The name of the run that it seems to be of."""
        names = [part for part in Path(self.path).parts if part != _OUTPUT]
        return names[-1] if names else self.source.name.removeprefix(_CLAIM_OF_A_RUN)


def find(source: ResultFolder) -> tuple[list[RunFolder], str]:
    """Return what runs have left in a source, the newest first, and what is wrong with it, in a sentence.

    Nothing in a source makes this fail.
    """
    found: list[RunFolder] = []
    folders, seen = deque([("", 0)]), 0
    try:
        os.listdir(source.root)  # noqa: PTH208 - only whether it can be read
    except OSError as error:
        return [], f"{source.name} cannot be read ({error.strerror}): let its group read it, or mount another claim"
    while folders and seen < _MOST_FOLDERS and len(found) < _MOST_RUNS:
        path, depth = folders.popleft()
        seen += 1
        if left := _left(source, path):
            found.append(left)
        elif depth < _DEPTH:
            folders.extend((f"{path}/{name}".lstrip("/"), depth + 1) for name in _folders(source.root / path))
    found.sort(key=lambda left: left.changed, reverse=True)
    if folders and len(found) < _MOST_RUNS:
        return found, f"{source.name} has more than {_MOST_FOLDERS} folders: name one further down, with fewer"
    return found, ""


def adapters_in(source: ResultFolder, path: str) -> list[str] | None:
    """Return the names of the adapters in a folder of a claim: none if it cannot be read, or leads out of the source.

    None stands for a folder that is elsewhere in the claim.
    """
    if not PurePosixPath(path).is_relative_to(source.below):
        return None
    folder = source.root / PurePosixPath(path).relative_to(source.below)
    try:
        if not folder.resolve().is_relative_to(source.root.resolve()):
            return []
    except (OSError, RuntimeError, ValueError):  # links in a circle, or a name that none can have
        return []
    return [name for name in sorted(_folders(folder)) if (folder / name / ADAPTER_CONFIG).is_file()][:_MOST_ADAPTERS]


def check(left: RunFolder) -> None:
    """Make sure that a run's files are in its source: links that lead elsewhere would show what is there.

    Its evaluations must be a file of a usual size: to read a pipe would never end.

    Raises:
        OutsideError: one of them is not, or cannot be evaluations.
        OSError: the folder is gone.
    """
    root = left.source.root.resolve()
    for path in (left.folder, *left.folder.iterdir()):
        if not path.resolve().is_relative_to(root):
            raise OutsideError(f"{path.name} of {left.source.name} leads out of it: put a file there instead of a link")
    told = left.folder / EVALUATION
    if told.exists() and not (told.is_file() and told.stat().st_size <= _MOST_BYTES):
        raise OutsideError(f"{EVALUATION} of {left.source.name} is not an evaluation file: remove it")


def read_report(left: RunFolder) -> bytes:
    """Return a run's report as it is in the source at this moment, not as something that it links to.

    Raises:
        OSError: there is none.
        OutsideError: it is a link, no file, or too large for a report.
    """
    opened = [os.open(left.source.root, os.O_RDONLY | os.O_DIRECTORY)]
    try:
        for name in Path(left.path).parts:
            opened.append(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=opened[-1]))
        # Without waiting: a pipe has nobody who writes.
        opened.append(os.open(REPORT, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=opened[-1]))
        told = os.fstat(opened[-1])
        if not stat.S_ISREG(told.st_mode) or told.st_size > _MOST_BYTES:
            raise OutsideError(f"{REPORT} of {left.source.name} is not a report file: remove it")
        with os.fdopen(os.dup(opened[-1]), "rb") as stream:
            return stream.read()
    finally:
        for one in opened:
            os.close(one)


def _folders(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # it is not for us, or went away
        return
    # A name that is no text could not be part of an address.
    yield from (name for name in sorted(names) if name.isprintable() and not name.startswith((".", "checkpoint-")))


def _left(source: ResultFolder, path: str) -> RunFolder | None:
    """Return the run whose output folder this is; None if it is none."""
    folder = source.root / path
    times = {name: _time(folder / name) for name in (METRICS, MANIFEST, REPORT)}
    # Published versions of adapters have a manifest too.
    ends = folder.name == _OUTPUT or not path
    if times[METRICS] is None and not (ends and times[MANIFEST] is not None):
        return None
    return RunFolder(
        source,
        path,
        _facts(folder / MANIFEST),
        _last(folder / METRICS),
        drawn=times[METRICS] is not None,
        reported=times[REPORT] is not None,
        changed=max(time for time in times.values() if time is not None),
    )


def _time(path: Path) -> float | None:
    """Return when a file changed last; None if there is none, or something else."""
    try:
        told = path.lstat()
    except OSError:
        return None
    return told.st_mtime if stat.S_ISREG(told.st_mode) else None


def _facts(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_bytes()) if _time(path) is not None and path.stat().st_size < _MOST_BYTES else None
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _last(path: Path) -> Mapping[str, float]:
    """Return the newest value of each metric near the end of a file of metrics; lines that are none count nothing."""
    if _time(path) is None:
        return {}
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = stream.read(_TAIL_BYTES).splitlines()
    except OSError:
        return {}
    last: dict[str, float] = {}
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        for name, value in record.items() if isinstance(record, dict) else ():
            if type(value) in (int, float) and abs(value) < 1e150 and math.isfinite(value):
                last.setdefault(name, float(value))
    return last
