"""A plugin whose trainer is a loop without transformers: it counts. docs/reference/plugin.md says what it must do."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from stoker.plugin import (
    Asked,
    Flag,
    FlagTable,
    Framework,
    Initialized,
    Input,
    Job,
    LLMBackend,
    Outcome,
    Setting,
    StopRequested,
    any_rank,
    barrier,
    seal,
)

MODULE = "loop_plugin"
# Beside its own flags those that every job of these tests sets.
_NAMES = ("output_dir", "max_steps", "model_name_or_path", "dataset_name", "logging_steps", "save_steps")
TABLE = FlagTable("counter 0", "count", {name: Flag(name, "str") for name in _NAMES})


class Counter(Framework):
    """Counting."""

    name: ClassVar[str] = "counter"
    methods: ClassVar[tuple[str, ...]] = ("count",)
    training: ClassVar[str] = MODULE
    packages: ClassVar[tuple[str, ...]] = ("torch",)

    def flag_table(self, method: str) -> FlagTable:
        """Return the flags."""
        return TABLE

    def trainer_module(self, method: str, world_size: int = 1) -> str:
        """Return this module."""
        return MODULE

    def method_of(self, word: str) -> str | None:
        """Return the method if the word is this module."""
        return "count" if word == MODULE else None

    def recipe(self, asked: Asked, table: FlagTable) -> Mapping[str, tuple[str, str]]:
        """Return the output folder."""
        return {"output_dir": (f"{asked.workspace}/output", "the run's folder in the workspace")}

    def problems(self, table: FlagTable, settings: Mapping[str, Setting], config_keys: Sequence[str]) -> list[str]:
        """Return no problem."""
        return []

    def inputs(self, table: FlagTable, settings: Mapping[str, Setting]) -> list[Input]:
        """Return nothing: counting reads nothing."""
        return []

    def base_model(self, table: FlagTable, settings: Mapping[str, Setting]) -> tuple[str | None, str | None]:
        """Return no model."""
        return None, None

    def budget(self, table: FlagTable, settings: Mapping[str, Setting]) -> dict[str, float]:
        """Return the number to count to."""
        return {"steps": float(str(settings["max_steps"].value))}

    def fingerprint(self, table: FlagTable, settings: Mapping[str, Setting], world_size: int) -> dict[str, object]:
        """Return the world size."""
        return {"world_size": world_size}


@dataclass
class CounterConfig(LLMBackend):
    """A run that counts."""

    framework: ClassVar[str] = Counter.name
    command: ClassVar[tuple[str, ...]] = ("stoker", "run")
    runner: ClassVar[type[Counter]] = Counter

    def to_args(self, initializer: Initialized | None = None) -> list[str]:
        """Return this module."""
        return [MODULE]


def train(job: Job) -> Outcome:
    """Count to the end, or to a stop."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    job.guard(torch.device("cpu"))
    begin = int((job.checkpoint / "count").read_text()) if job.checkpoint else 0
    outcome = Outcome(begin, int(job.plan.budget["steps"]))
    job.pulse.beat("first step", begin)
    job.on_training()
    while outcome.step < outcome.total:
        time.sleep(0.05)
        outcome.step += 1
        job.pulse.beat("training", outcome.step)
        if any_rank(job.stop_flag.exists(), torch.device("cpu")):
            job.pulse.beat("saving", outcome.step)
            _save(job, outcome.step)
            raise StopRequested(outcome.step)
    outcome.finished = True
    return outcome


def _save(job: Job, step: int) -> None:
    import torch.distributed as dist

    folder = Path(job.plan.output_dir) / f"checkpoint-{step}"
    if dist.get_rank() == 0:
        folder.mkdir(parents=True)
        (folder / "count").write_text(str(step))
        seal(folder, step, **job.plan.record)
    barrier()
