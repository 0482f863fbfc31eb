"""What a checkpoint keeps of the rollouts, so that a resumed run trains each group exactly once.

The samples under way are not kept: the resumed run writes them again, with the policy that it goes back to.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import read_json, write_json

STATE = "rollouts.json"
_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class RolloutState:
    """The rollouts at the end of a step.

    Attributes:
        step: optimizer steps done, which is the next step to train.
        batch: groups per step.
        rows: rows of the data.
        seed: of the order of rows and of all answers.
        frontier: each group with a smaller ordinal is trained.
        above: ordinals above the frontier that are trained too, in order.
        in_flight: ordinal and version of each group that was started and not trained, in order of the ordinals.
        version: the newest version that samplers had; None before the first.
        depth: how many batches were under way beside the one in training.
        staleness: the bound that held.
    """

    step: int
    batch: int
    rows: int
    seed: int
    frontier: int
    above: tuple[int, ...]
    in_flight: tuple[tuple[int, int], ...]
    version: int | None
    depth: int
    staleness: int

    def write(self, folder: Path) -> None:
        """Write it into a checkpoint.

        Raises:
            OSError: the folder cannot be written to.
        """
        write_json(folder / STATE, {"schema": _SCHEMA, **asdict(self)})

    def require(self, *, batch: int, rows: int, seed: int) -> None:
        """Check that a run may go on from here.

        Raises:
            RunError: it has other groups per step, other data or another seed; code 78.
        """
        given = {"groups per step": (self.batch, batch), "rows of data": (self.rows, rows), "seed": (self.seed, seed)}
        changed = [f"{name} {old}, now {new}" for name, (old, new) in given.items() if old != new]
        if changed:
            raise RunError(
                ExitCode.CONFIG,
                f"the checkpoint of step {self.step} was made with {'; '.join(changed)}: its groups could not be told "
                "apart any more. Set what it was made with, or start a new run with another output folder",
            )


def read_state(folder: Path) -> RolloutState:
    """Return what a checkpoint keeps.

    Raises:
        RunError: the file is missing, damaged or of another schema; code 78.
    """
    path = folder / STATE
    data = read_json(path)
    if data is None:
        raise _unusable(path, "is missing or is not JSON")
    if not isinstance(data, dict) or data.get("schema") != _SCHEMA:
        schema = data.get("schema") if isinstance(data, dict) else None
        raise _unusable(path, f"has schema {schema!r}, but this image reads {_SCHEMA}")
    if flaw := _flaw(data):
        raise _unusable(path, flaw)
    return RolloutState(
        **{name: data[name] for name in _NUMBERS},
        above=tuple(data["above"]),
        in_flight=tuple((ordinal, version) for ordinal, version in data["in_flight"]),
        version=data["version"],
    )


_NUMBERS = ("step", "batch", "rows", "seed", "frontier", "depth", "staleness")
_FIELDS = {"schema", *_NUMBERS, "above", "in_flight", "version"}


def _flaw(data: dict[str, Any]) -> str:
    """Return what is wrong with the fields; empty if they hold together."""
    if data.keys() != _FIELDS:
        return f"should have {', '.join(sorted(_FIELDS))}, but has {', '.join(sorted(data))}"
    for name in _NUMBERS:
        if not _is_count(data[name]) and not (name == "seed" and type(data[name]) is int):
            return f"has {name} {data[name]!r}, which is not a count"
    if data["version"] is not None and not _is_count(data["version"]):
        return f"has version {data['version']!r}, which is not a count"
    above, flying = data["above"], data["in_flight"]
    if not isinstance(above, list) or not all(map(_is_count, above)) or above != sorted({*above, data["frontier"]})[1:]:
        return "has no ascending ordinals above the frontier in above"
    pairs = isinstance(flying, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(map(_is_count, pair)) for pair in flying
    )
    if not pairs or {ordinal for ordinal, _ in flying} & {*above} or any(one < data["frontier"] for one, _ in flying):
        return "has no untrained ordinals with their versions in in_flight"
    if data["frontier"] + len(above) != data["step"] * data["batch"]:
        trained = data["frontier"] + len(above)
        return f"lists {trained} groups as trained, but {data['step']} steps train {data['batch']} each"
    return ""


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _unusable(path: Path, flaw: str) -> RunError:
    return RunError(
        ExitCode.CONFIG,
        f"{path} {flaw}: resume with the image that wrote it, or delete this checkpoint to resume from the one before",
    )
