"""Compares what Stoker and the real classes say of values in `--fsdp_config` and `--lr_scheduler_kwargs`.

Run with the trainer's Python: `python option_cases.py`. Prints, as JSON, how many values both took and how many both
refused, and each disagreement. Another test compares the keys.
"""

from __future__ import annotations

import json
import logging
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from accelerate.utils import FullyShardedDataParallelPlugin
from transformers import TrainingArguments
from transformers.optimization import get_scheduler

from stoker.frameworks.trl.configuration import _without_devices
from stoker.frameworks.trl.flags import flag_table
from stoker.frameworks.trl.fsdp_options import OPTIONS, wrong_options
from stoker.frameworks.trl.mappings import KEYS
from stoker.frameworks.trl.schedules import BY_METRICS, NEEDED, SCHEDULES, WORDS, schedule_problems
from stoker.plan.arguments import Setting
from stoker.plan.interfaces import Asked

ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        0.5,
        1e9,
        "",
        "x",
        "1",
        "true",
        "False",
        "no",
        "on",
        [],
        [1],
        ["a"],
        {},
        {"a": 1},
    ),
    *(word for options in OPTIONS.values() for words in options.values() for word in words),
    *(word.lower() for words in OPTIONS["1"].values() for word in words),
    *(word for words in WORDS.values() for word in words),
)
# Keys of which they take what means nothing.
LENIENT = ("version", "cpu_offload", "min_num_params", "transformer_layer_cls_to_wrap", "state_dict_type")
LEARNING_RATE = 2e-5
STEPS = 10


def main() -> None:
    """Compare, and print what was found."""
    logging.disable()
    warnings.simplefilter("ignore")
    seen: Counter[str] = Counter()
    found: list[str] = []
    for kind, what, ours, theirs, stricter in (*fsdp_cases(), *schedule_cases()):
        refused = bool(ours)
        if refused == (theirs is not None):
            seen[f"{kind}: both {'refuse' if refused else 'take'}"] += 1
        elif not (refused and stricter):
            found.append(f"{kind} {what}: Stoker says {ours or 'nothing'}, and the classes say {theirs or 'nothing'}")
    print(json.dumps({"seen": seen, "disagreements": found}))


def fsdp_cases() -> Iterator[tuple[str, str, list[str], str | None, bool]]:
    """Yield values of each key in each version: kind, value, what both say of it, whether Stoker may be stricter."""
    for version in ({}, {"version": 1}, {"version": "2"}):
        for key in KEYS["fsdp_config"]:
            for value in ODD if not key.startswith("xla") else ():
                config = {**version, key: value}
                yield "fsdp_config", json.dumps(config), [*wrong_options(config)], of_fsdp(config), stricter(key, value)


def of_fsdp(config: Mapping[str, Any]) -> str | None:
    """Return why transformers or accelerate refuses a configuration; None if they take it."""
    for name in [name for name in os.environ if name.startswith("FSDP_")]:
        del os.environ[name]
    try:
        with _without_devices(2):
            made = TrainingArguments(output_dir="/tmp", fsdp=True, fsdp_config=dict(config), use_cpu=True)
        FullyShardedDataParallelPlugin(**(made.fsdp_plugin_args or {}))
    except Exception as error:  # noqa: BLE001 - whatever it is, they do not take the value
        # Version 1 needs a GPU, and Stoker says so elsewhere.
        return None if "no available devices" in str(error) else f"{type(error).__name__}: {error}"
    return None


def stricter(key: str, value: Any) -> bool:
    """Return whether Stoker may refuse a value that they take: a word's number, or what means nothing."""
    return key in LENIENT or str(value).isdigit()


def schedule_cases() -> Iterator[tuple[str, str, list[str], str | None, bool]]:
    """Yield each value of each key of each schedule, as `fsdp_cases` does."""
    table = flag_table("sft")
    for schedule in SCHEDULES:
        needed = {NEEDED[schedule][0]: 1} if schedule in NEEDED else {}
        yield "schedule", schedule, *of_schedule(schedule, {}, table), False
        for key in SCHEDULES[schedule]:
            others = {name: value for name, value in needed.items() if key not in NEEDED[schedule]}
            for value in ODD:
                options = {**others, key: value}
                # A text that is a number, and what they look at in a later step only.
                yield "schedule", f"{schedule} {json.dumps(options)}", *of_schedule(schedule, options, table), True


def of_schedule(schedule: str, options: Mapping[str, Any], table: Any) -> tuple[list[str], str | None]:
    """Return what Stoker and transformers say of a schedule's options."""
    flags = {"lr_scheduler_type": schedule, "lr_scheduler_kwargs": json.dumps(options)}
    settings = {name: Setting(name, text, "args") for name, text in flags.items()}
    ours = [*schedule_problems(Asked("sft"), table, settings, lambda name: LEARNING_RATE)]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LEARNING_RATE)
    try:
        made = get_scheduler(schedule, optimizer, 2, STEPS, {**options})
        optimizer.step()
        for _ in range(STEPS):
            made.step(*([1.0] if schedule in BY_METRICS else []))
    except Exception as error:  # noqa: BLE001 - whatever it is, they do not take the value
        return ours, f"{type(error).__name__}: {error}"
    return ours, None


if __name__ == "__main__":
    main()
