"""What a LoRA model is and how it is stepped, and what a checkpoint says of it. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.tinker.refusals import RefusedError

ABOUT = "tinker.json"
"""The file in a checkpoint that says what its model is."""

ALPHA = 32
"""The scale for clients that do not choose one. As Tinker has it: the learning rate then hardly depends on the rank."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a LoRA model is.

    Attributes:
        rank: of its matrices.
        seed: of their first values.
        train_mlp: the feed-forward layers have them.
        train_attn: the attention layers have them.
        alpha: their scale: what they add is multiplied by `alpha / rank`.
    """

    rank: int
    seed: int = 0
    train_mlp: bool = True
    train_attn: bool = True
    alpha: int = ALPHA


@dataclass(frozen=True, slots=True)
class Adam:
    """One step of AdamW.

    Attributes:
        learning_rate: of this step.
        beta1: how long the mean of gradients remembers.
        beta2: how long the mean of their squares remembers.
        eps: keeps the divisor from zero.
        weight_decay: as AdamW has it.
        grad_clip_norm: the largest norm of the gradient; 0 for no limit.
    """

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


def read_about(folder: Path) -> dict[str, Any]:
    """Return what a checkpoint says of its model: `base_model` and the fields of `Shape`.

    Raises:
        RefusedError: it says nothing.
    """
    try:
        return dict(json.loads((folder / ABOUT).read_text()))
    except (OSError, ValueError) as error:
        raise RefusedError(f"the checkpoint {folder.name} is damaged ({error}): use another one") from error
