"""What a finished run has measured of itself: tokens, speed and memory, for an estimate of the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.metrics import PEAK_MEMORY, TOKENS, TOKENS_PER_SECOND
from stoker.report.runs import output_of, read_run


@dataclass(frozen=True, slots=True)
class Measured:
    """A run, measured.

    Attributes:
        tokens_per_second: of all its processes; the median, so that the first steps count little.
        steps: how many it made.
        seconds: how long they took, without the start.
        tokens: how many it trained: counted, or about.
        processes: its world size.
        peak_gib: the most memory that rank 0 used; None if it did not say.
        budget: how much it was to train, by unit.
        record: what its manifest says of its data and settings (`fingerprint`, `settings`).
    """

    tokens_per_second: float
    steps: int
    seconds: float
    tokens: float
    processes: int
    peak_gib: float | None
    budget: Mapping[str, float]
    record: Mapping[str, Any]


def read_measured(path: Path) -> Measured:
    """Read a finished run's measurements.

    Raises:
        RunError: it is no run (66), or it did not measure what an estimate needs (65).
        OSError: it cannot be read.
    """
    folder = output_of(path)
    try:
        run = read_run(folder)
    except ValueError as error:
        raise RunError(ExitCode.BAD_DATA, str(error)) from error
    told = {} if run is None else run.facts
    given = [told.get(name) for name in ("steps", "training_seconds", "world_size")]
    numbers = [float(one) for one in given if isinstance(one, int | float) and one > 0]
    speeds = run.curves[TOKENS_PER_SECOND].values if run and TOKENS_PER_SECOND in run.curves else []
    if run is None or not speeds or len(numbers) < len(given):
        raise RunError(
            ExitCode.BAD_DATA,
            f"{folder} does not tell tokens per second, steps and seconds of training: name the output folder of a "
            "finished run that logged tokens_per_second",
        )
    if told.get("resumed_from"):
        raise RunError(
            ExitCode.BAD_DATA,
            f"{folder} is a resumed run, and its time covers only the last attempt: name another run",
        )
    steps, seconds, processes = numbers
    speed = median(speeds)
    counted = run.curves.get(TOKENS)
    peak = run.curves[PEAK_MEMORY].values if PEAK_MEMORY in run.curves else ()
    budget = told.get("budget")
    record = {name: part if isinstance(part := told.get(name), dict) else {} for name in ("fingerprint", "settings")}
    return Measured(
        speed,
        round(steps),
        seconds,
        # The last steps may not be logged.
        counted.values[-1] / counted.steps[-1] * steps if counted else speed * seconds,
        round(processes),
        max(peak, default=None),
        budget if isinstance(budget, dict) else {},
        record,
    )
