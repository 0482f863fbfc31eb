"""Reads what a run has left in its output folder. Anybody may have written there, so nothing in it is trusted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.contract.evaluation import read_evaluations
from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import read_json
from stoker.contract.manifest import MANIFEST
from stoker.contract.metrics import METRICS, SAMPLES
from stoker.report.curves import Curve

# Above these, a file, a run or a number is not one of ours.
_MOST_BYTES, _MOST_NAMES, _LARGEST, _MOST_STEPS = 512 << 20, 1000, 1e150, 2**53
_READ_BYTES = 1 << 18
# Groups of samples in a report, spread over the run.
_GROUPS = 8
_EVALUATIONS = 20


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run, as its files tell of it.

    Attributes:
        curves: metric → its values.
        facts: what the manifest says; empty without one.
        groups: a few groups of samples with their prompts.
        evaluations: what was measured of its result, the newest last.
    """

    curves: Mapping[str, Curve]
    facts: Mapping[str, Any]
    groups: tuple[Mapping[str, Any], ...]
    evaluations: tuple[Mapping[str, Any], ...] = ()


def read_run(folder: Path, facts: Mapping[str, Any] | None = None) -> RecordedRun | None:
    """Read a run; None if it has no metrics.

    Args:
        folder: its output folder.
        facts: what its manifest will say, if that is not written yet.

    Raises:
        OSError: a file exists, but cannot be read.
        ValueError: a file is too large to be a run's.
    """
    curves = _curves(folder / METRICS)
    if not curves:
        return None
    found = read_json(folder / MANIFEST) if facts is None else facts
    return RecordedRun(
        curves, found if isinstance(found, dict) else {}, _groups(folder / SAMPLES), _evaluations(folder)
    )


def output_of(path: Path) -> Path:
    """Return the output folder that a user means: of a workspace, of a file of metrics, or the folder itself.

    Raises:
        RunError: there are no metrics (66).
    """
    folder = path.parent if path.name == METRICS else path
    for found in (folder, folder / "output"):
        if (found / METRICS).is_file():
            return found
    raise RunError(
        ExitCode.NO_INPUT,
        f"{path} has no {METRICS}: name the output folder of a run, which has one after its first step",
    )


def _curves(path: Path) -> dict[str, Curve]:
    curves: dict[str, Curve] = {}
    # Bound once: a long run has a million values.
    adds: dict[str, tuple[Callable[[float], None], Callable[[float], None]]] = {}
    last = -1
    for record in _records(path):
        step = record.pop("step", None)
        if type(step) is not int or not last < step <= _MOST_STEPS:
            continue
        last = step
        for name, value in record.items():
            kind = type(value)
            # Compared so, NaN is none either.
            if (kind is float or kind is int) and -_LARGEST <= value <= _LARGEST:
                if name not in adds:
                    if len(curves) == _MOST_NAMES:
                        continue
                    curve = curves[name] = Curve()
                    adds[name] = curve.steps.append, curve.values.append
                add_step, add_value = adds[name]
                add_step(step)
                add_value(value)
    return curves


def _evaluations(folder: Path) -> tuple[Mapping[str, Any], ...]:
    return tuple(read_evaluations(folder)[-_EVALUATIONS:])


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects in a file of JSON lines; what is none is left out."""
    if not path.is_file():
        return
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} has more than {_MOST_BYTES >> 20} MiB")
    with path.open("rb") as stream:
        while lines := stream.readlines(_READ_BYTES):
            for found in _parsed(lines):
                if isinstance(found, dict):
                    yield found


def _parsed(lines: list[bytes]) -> list[Any]:
    try:
        # Many lines at once take half the time.
        return list(json.loads(b"[" + b",".join(lines) + b"]"))
    except (ValueError, RecursionError):
        return [found for line in lines if (found := _value(line)) is not None]


def _value(line: bytes) -> Any | None:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _groups(path: Path) -> tuple[Mapping[str, Any], ...]:
    # A resumed run writes samples of a step again: the newer ones count.
    found = {
        (step, record.get("epoch") is None, str(record.get("epoch")), str(record.get("row"))): record
        for record in _records(path)
        if type(step := record.get("step")) is int and isinstance(record.get("samples"), list)
    }
    order = sorted(found, key=lambda key: key[0])
    if len(order) > _GROUPS:
        order = [order[index * (len(order) - 1) // (_GROUPS - 1)] for index in range(_GROUPS)]
    return tuple(found[key] for key in order)
