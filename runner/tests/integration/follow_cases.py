"""Trains with a loss that is no number from a step on: `follow_cases.py FOLDER STEP [trainer's options as JSON]`.

Prints a JSON object: the ending's code and message, null if training went through, and the checkpoints that were left.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments

from stoker.callback import RunCallback
from stoker.exits import RunError
from stoker.pulse import Pulse
from stoker.training.job import Outcome

# The filter is off as in our recipe.
_USUAL = {"max_steps": 6, "logging_steps": 50, "logging_nan_inf_filter": False, "report_to": "none", "use_cpu": True}


class Broken(torch.nn.Module):
    """One weight, whose loss is no number from its nth forward pass on."""

    def __init__(self, sound: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self._left = sound

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss of one row."""
        self._left -= 1
        return {"loss": (self.weight * (x + labels)).sum() * (1.0 if self._left >= 0 else math.nan)}


def main(folder: Path, step: int, options: dict[str, object]) -> None:
    """Train six steps on a CPU."""
    following = RunCallback(folder / "stop", {}, Outcome(), Pulse(folder / "ranks", 0), lambda: None)
    arguments = TrainingArguments(str(folder / "output"), **{**_USUAL, **options})
    rows = [{"x": torch.ones(1), "labels": torch.ones(1)}] * 96
    ending = None
    try:
        Trainer(Broken(step - 1), arguments, train_dataset=rows, callbacks=[following]).train()
    except RunError as error:
        ending = [int(error.code), error.message]
    saved = sorted(path.name for path in (folder / "output").glob("checkpoint-*"))
    print(json.dumps({"ending": ending, "saved": saved}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
