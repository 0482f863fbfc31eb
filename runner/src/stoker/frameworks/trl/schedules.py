"""Finds what a schedule of the learning rate does not take in `--lr_scheduler_kwargs`, and what it needs. Pure.

The rules are those of transformers 5 (`get_scheduler`), which finds them once the model is loaded.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stoker.plan.arguments import FlagTable, Setting
from stoker.plan.interfaces import Asked

_FLAG = "lr_scheduler_kwargs"
_TYPE = "lr_scheduler_type"
_WITH_LEAST = ("num_cycles", "min_lr", "min_lr_rate")
# Types that look at evaluations.
BY_METRICS = ("reduce_lr_on_plateau", "greedy")
_OF_METRICS = ("mode", "factor", "patience", "threshold", "threshold_mode", "cooldown", "min_lr", "eps")
# Type → its keys, but for the step to begin at, which only the trainer knows. A test compares them with the functions.
SCHEDULES: Mapping[str, tuple[str, ...]] = {
    "linear": (),
    "cosine": ("num_cycles",),
    "cosine_with_restarts": ("num_cycles",),
    "polynomial": ("lr_end", "power"),
    "constant": (),
    "constant_with_warmup": (),
    "inverse_sqrt": ("timescale",),
    "reduce_lr_on_plateau": _OF_METRICS,
    "cosine_with_min_lr": _WITH_LEAST,
    "cosine_warmup_with_min_lr": (*_WITH_LEAST, "warmup_lr_rate"),
    "warmup_stable_decay": (
        *("num_decay_steps", "num_stable_steps", "warmup_type", "decay_type", "min_lr_ratio", "num_cycles"),
    ),
    "greedy": (*_OF_METRICS, "warmup", "max_lr", "verbose", "smooth", "window_size", "reset_start"),
}
# Type → the keys of which it needs exactly one.
NEEDED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("cosine_with_min_lr", "cosine_warmup_with_min_lr"), ("min_lr", "min_lr_rate")),
    "warmup_stable_decay": ("num_decay_steps",),
}
_SHAPES = ("linear", "cosine", "1-sqrt")
# Key → its words; every other key takes a number.
WORDS: Mapping[str, tuple[str, ...]] = {
    "mode": ("min", "max"),
    "threshold_mode": ("rel", "abs"),
    "warmup_type": _SHAPES,
    "decay_type": _SHAPES,
}
# Where transformers' polynomial ends by default.
_END = 1e-7
# Keys that may be null, which means unset.
_UNSET = ("timescale", "min_lr", "min_lr_rate", "warmup_lr_rate", "num_stable_steps")
# Key → whether a number is out of its range, and what to write.
_RANGES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "factor": (lambda number: number >= 1, "a number below 1"),
    "timescale": (lambda number: number <= 0, "a number above 0"),
    "power": (lambda number: number < 0, "0 or more"),
}


def schedule_problems(
    asked: Asked, table: FlagTable, settings: Mapping[str, Setting], number: Callable[[str], float | None]
) -> Iterator[str]:
    """Yield one problem for each key that the run's schedule does not take, and for each that it lacks.

    Args:
        asked: what the user asks for.
        table: the method's flags, with the trainer's defaults.
        settings: the merged settings.
        number: returns a flag's value or default; None if it is not a number.
    """
    setting, options = settings.get(_TYPE), _options(settings)
    if options is None or (setting is None and _TYPE in asked.values):
        return  # other checks refuse what is written
    schedule = str(table.flags[_TYPE].default if setting is None else setting.value)
    yield from _option_problems(schedule, options, settings)
    if schedule == "polynomial":
        yield from _end_above_begin(options.get("lr_end", _END), number("learning_rate"))


def own_schedule_problems(settings: Mapping[str, Setting], rate: float | None) -> Iterator[str]:
    """Yield one problem for each option of a schedule that is wrong whatever else is set.

    Args:
        settings: what is set.
        rate: the learning rate that is set, if any.
    """
    options = _options(settings)
    if _FLAG not in settings or options is None:
        return
    if _TYPE not in settings:
        if all([*_option_problems(schedule, options, settings)] for schedule in SCHEDULES):
            yield f"--{_FLAG} ({settings[_FLAG].source}) fits no schedule: add --{_TYPE}, and give only what it takes"
        return
    schedule = str(settings[_TYPE].value)
    if schedule not in SCHEDULES:
        return  # the flag's choices refuse it
    yield from _option_problems(schedule, options, settings)
    if schedule == "polynomial":
        yield from _end_above_begin(options.get("lr_end", _END), rate)


def _option_problems(schedule: str, options: Mapping[str, Any], settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield one problem for each key that a schedule does not take, lacks, or has with a value that it cannot use."""
    known = SCHEDULES[schedule]
    for key, value in options.items():
        where = f"--{_FLAG} ({settings[_FLAG].source})"
        if key not in known:
            yield f"{where} has the key {key}, which the schedule {schedule} does not take: {_advice(key, known)}"
        elif wanted := _wanted(key, value, schedule):
            yield f"{where} has {key} {value!r}: write {wanted}"
    needed = NEEDED.get(schedule, ())
    if needed and len([key for key in needed if options.get(key) is not None]) != 1:
        one = f"exactly one of {' and '.join(needed)}" if len(needed) > 1 else needed[0]
        yield f"--{_TYPE} {schedule} needs {one}: write --{_FLAG} '{{\"{needed[0]}\": …}}'"


def _options(settings: Mapping[str, Setting]) -> dict[str, Any] | None:
    """Return the schedule's options; None if another check refuses them."""
    if _FLAG not in settings or settings[_FLAG].value in ("", "none"):
        return {}
    try:
        options = json.loads(str(settings[_FLAG].value))
    except (ValueError, RecursionError):
        return None
    return options if isinstance(options, dict) else None


def _advice(key: str, known: tuple[str, ...]) -> str:
    if not known:
        return f"leave it out, or choose another --{_TYPE}"
    close = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}"


def _wanted(key: str, value: Any, schedule: str) -> str:
    """Return what to write instead of a key's value; empty if the schedule takes it."""
    if key in WORDS:
        return "" if value in WORDS[key] else f"one of {', '.join(WORDS[key])}"
    if value is None and key in _UNSET and schedule not in BY_METRICS:
        return ""
    if not isinstance(value, int | float):
        return "a number"
    is_outside, wanted = _RANGES.get(key, (None, ""))
    return wanted if is_outside is not None and is_outside(value) else ""


def _end_above_begin(end: Any, begin: float | None) -> Iterator[str]:
    if begin is not None and isinstance(end, int | float) and end >= begin:
        yield (
            f"--{_TYPE} polynomial ends at the learning rate {end}, which must be below --learning_rate, {begin:g}: "
            f"write a lower one, --{_FLAG} '{{\"lr_end\": …}}'"
        )
