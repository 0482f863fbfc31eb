"""Real runs whose manifests are compared with an earlier runner's, and the checkpoint of one to go on from."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.tests.integration.jobs import Ended, LocalJob
from runner.tests.integration.tune_jobs import LORA

# What a manifest holds only of this very run: when, how fast, with which packages, on which bytes.
_VOLATILE = {"time", "seconds", "run_id", "sha256"}
_VALUES_VOLATILE = {"metrics", "versions"}
_SEAL = "stoker-checkpoint.json"
_INPUTS = "{inputs}"


@dataclass(frozen=True)
class Run:
    """A run of a few steps.

    Attributes:
        image: the image whose trainers it needs.
        args: the trainer's arguments.
        options: what else to tell `LocalJob.run`.
    """

    image: str
    args: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def run(self, job: LocalJob) -> Ended:
        """Run it to its end."""
        return job.run(*self.args, **self.options)


_SHORT = ("--max_steps", "4", "--per_device_train_batch_size", "8", "--learning_rate", "5e-3")
RUNS = {
    "trl full": Run("trl", ("trl.scripts.sft", *_SHORT), {"command": ("stoker", "run")}),
    "trl lora": Run("trl", ("--max_steps", "4", "--lora_dropout", "0.1"), {"nodes": 2}),
    "torchtune lora": Run(
        "torchtune",
        (
            *("lora_finetune_distributed", f"model={LORA}", "model.lora_rank=4", "epochs=1"),
            "lr_scheduler.num_warmup_steps=2",
        ),
        {"processes": 2},
    ),
}
# Runs of which a checkpoint is kept, and that of its output folder.
STOPPED = {
    "trl": (Run("trl", ("--max_steps", "10", "--lora_r", "2", "--save_total_limit", "5"), {"processes": 2}), 5),
    "torchtune": (
        Run(
            "torchtune",
            (
                *("lora_finetune_distributed", f"model={LORA}", "model.lora_rank=2", "epochs=2"),
                *("lr_scheduler.num_warmup_steps=2", "seed=7"),
            ),
            {"processes": 2},
        ),
        4,
    ),
}


def masked(job: LocalJob) -> dict[str, Any]:
    """Return a finished job's manifest, with the types of values in the place of those that no two runs share."""
    text = json.dumps(job.manifest()).replace(str(job.folder), "{job}").replace(str(job.inputs), _INPUTS)
    manifest: dict[str, Any] = _masked(json.loads(text))
    return manifest


def _masked(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        # Files of text name folders, so that their sizes differ.
        varies = {"bytes"} if not str(value.get("path", "")).endswith(".safetensors") else set()
        if key in _VALUES_VOLATILE:
            varies = {*value}
        return {
            name: _kind(item) if name in _VOLATILE | varies else _masked(item, name) for name, item in value.items()
        }
    return [_masked(item) for item in value] if isinstance(value, list) else value


def _kind(value: Any) -> str:
    return f"<{type(value).__name__}>"


def pack(job: LocalJob, step: int, archive: Path) -> None:
    """Keep the job's checkpoint of a step; its seal then names no folder of the machine it was made on."""
    folder = job.output / f"checkpoint-{step}"
    seal = folder / _SEAL
    seal.write_text(seal.read_text().replace(str(job.inputs), _INPUTS))
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        packed.add(folder, folder.name, filter=_anyones)


def unpack(archive: Path, job: LocalJob) -> None:
    """Put the kept checkpoint where the job's own would be."""
    job.output.mkdir(parents=True)
    with tarfile.open(archive) as packed:
        packed.extractall(job.output, filter="data")
    (seal,) = job.output.glob(f"checkpoint-*/{_SEAL}")
    seal.write_text(seal.read_text().replace(_INPUTS, str(job.inputs)))


def _anyones(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry
