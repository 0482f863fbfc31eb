"""Checkpoints of a training with PPO: the adapter as PEFT saves it, and beside it what else a run goes on with.

`state.json` comes last, and a folder gets its name when it is complete.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.contract.exits import ExitCode
from stoker.contract.files import read_json
from stoker.contract.manifest import ADAPTER_WEIGHTS
from stoker.lab.errors import LabError, refuse
from stoker.lab.rows import some

if TYPE_CHECKING:
    from stoker.lab.ppo.learner import Learner

STATE, TENSORS = "state.json", "ppo.pt"
# In the output folder: which run began last there.
_RUN = "run.json"
_NAME = re.compile(r"step_(\d+)")
_VERSION = 1
_ANEW = "begin anew in another output_dir"


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """Where a run is, and which run it is.

    Attributes:
        step: steps that are done.
        position: prompts that were taken.
        model: the base model's name.
        adapter: how the adapter is made.
        prompts: digest of all prompts.
        config: what decides what is learned.
        rewards: the names of what judges the answers.
        run: id of the run; empty if an earlier version wrote the state.
    """

    step: int
    position: int
    model: str
    adapter: Mapping[str, Any]
    prompts: str
    config: Mapping[str, Any]
    rewards: Sequence[str] = ()
    run: str = ""


def begin_run(folder: Path, run: str) -> None:
    """Say which run goes on in an output folder: `newest` leaves out the checkpoints of earlier ones."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _RUN).write_text(json.dumps({"run": run}) + "\n")


def newest(folder: Path) -> Path | None:
    """Return the checkpoint with the most steps of the run that began last in a folder; None if there is none."""
    last = read_json(folder / _RUN)
    run = last.get("run", "") if isinstance(last, dict) else ""
    found = {
        int(match[1]): path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := _NAME.fullmatch(path.name)) and (path / STATE).is_file() and (not run or _run_of(path) == run)
    }
    return found[max(found)] if found else None


def _run_of(folder: Path) -> object:
    told = read_json(folder / STATE)
    return told.get("run") if isinstance(told, dict) else None


def read_state(folder: Path) -> CheckpointState:
    """Return where the run of a checkpoint is.

    Raises:
        LabError: the folder has no checkpoint.
    """
    told = read_json(folder / STATE)
    if not isinstance(told, dict) or told.pop("version", None) != _VERSION:
        raise LabError(
            f"{folder} has no checkpoint of RLHF: {STATE} is missing or of another version; write a folder that "
            "save_checkpoint wrote",
            ExitCode.NO_INPUT,
        )
    try:
        return CheckpointState(**told)
    except TypeError as error:
        raise LabError(f"{folder}/{STATE} is damaged ({error}): write another checkpoint", ExitCode.NO_INPUT) from error


def refuse_other(folder: Path, before: CheckpointState, now: CheckpointState) -> None:
    """Refuse to go on from the checkpoint of another run.

    Raises:
        LabError: names what differs.
    """
    refuse(f"the checkpoint {folder} {line}" for line in _differences(before, _plain(now)))


def write(folder: Path, learner: Learner, state: CheckpointState) -> None:
    """Write a checkpoint; one that has the name is replaced.

    Args:
        folder: the checkpoint.
        learner: what is saved.
        state: where the run is.
    """
    import torch

    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    learner.model.save_pretrained(str(partial))
    version, words, last = random.getstate()
    tensors = {
        "head": learner.head.state_dict(),
        "optimizer": learner.optimizer.state_dict(),
        "start": learner.start,
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": [version, list(words), last],
    }
    torch.save(tensors, partial / TENSORS)
    (partial / STATE).write_text(json.dumps({"version": _VERSION, **asdict(state)}, indent=2) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    partial.replace(folder)


def read(folder: Path, learner: Learner) -> None:
    """Bring a learner, and the random numbers of this process, to where a checkpoint has them.

    Raises:
        LabError: the checkpoint is not of this adapter.
    """
    import torch
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    adapter = load_file(folder / ADAPTER_WEIGHTS)
    found = set_peft_model_state_dict(learner.model, adapter)
    lacking = [name for name in found.missing_keys if "lora_" in name]
    if lacking or found.unexpected_keys:
        raise LabError(
            f"the checkpoint {folder} has another adapter: {some([*lacking, *found.unexpected_keys])} differ; write "
            "the checkpoint of this run",
            ExitCode.BAD_DATA,
        )
    tensors = torch.load(folder / TENSORS, map_location="cpu", weights_only=True)
    learner.head.load_state_dict(tensors["head"])
    learner.optimizer.load_state_dict(tensors["optimizer"])
    if tensors["start"] is not None:
        learner.start = {name: value.to(learner.model.device) for name, value in tensors["start"].items()}
    torch.set_rng_state(tensors["torch"])
    if tensors["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(tensors["cuda"])
    version, words, last = tensors["python"]
    random.setstate((version, tuple(words), last))


def _plain(state: CheckpointState) -> CheckpointState:
    """Return a state as JSON would hand it back."""
    return CheckpointState(**json.loads(json.dumps(asdict(state))))


def _differences(before: CheckpointState, now: CheckpointState) -> Iterator[str]:
    if before.model != now.model:
        yield f"is of {before.model}, but the policy is {now.model}: use that model, or {_ANEW}"
    for what, was, has in (("adapter", before.adapter, now.adapter), ("config", before.config, now.config)):
        for name in sorted({*was, *has}):
            if was.get(name) != has.get(name):
                changed = f"{name}={was.get(name)!r} ({what}), not {has.get(name)!r}"
                yield f"was trained with {changed}: write the same, or {_ANEW}"
    if before.rewards and [*before.rewards] != [*now.rewards]:
        earlier, asked = ", ".join(before.rewards), ", ".join(now.rewards)
        yield f"was trained with the rewards of {earlier}, not of {asked}: write the same, or {_ANEW}"
    if before.prompts != now.prompts:
        yield f"was trained with other prompts: write the same, or {_ANEW}"
