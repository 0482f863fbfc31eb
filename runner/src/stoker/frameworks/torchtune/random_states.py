"""Saves and restores the random states of a rank in a checkpoint, because TorchTune does not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy
import torch


def save(folder: Path, rank: int) -> None:
    """Write this rank's states into a checkpoint's folder; create the folder if it is missing.

    Raises:
        OSError: the folder cannot be written to.
    """
    state: Any = numpy.random.get_state()  # a tuple; numpy's types say that it may be a dict
    kind, keys, *rest = state
    states = {
        "python": random.getstate(),
        "numpy": [kind, torch.tensor(keys.astype("int64")), *rest],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(states, _path(folder, rank))


def restore(folder: Path, rank: int) -> None:
    """Restore the states that this rank had when the checkpoint was saved.

    Raises:
        OSError: the checkpoint has no states of this rank.
    """
    states = torch.load(_path(folder, rank), map_location="cpu", weights_only=True)
    kind, keys, *rest = states["numpy"]
    random.setstate(states["python"])
    numpy.random.set_state((kind, keys.numpy().astype("uint32"), *rest))
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def _path(folder: Path, rank: int) -> Path:
    return folder / f"random-states-{rank}.pt"
