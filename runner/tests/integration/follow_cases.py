"""Puts real training loops through what the runner's callback must see to: `follow_cases.py FOLDER`.

Prints a JSON object: case → the ending's code and message (null: training went through), the checkpoints that were
left, how many rows were evaluated, the lines of metrics, and the files that tell the token of the Hub.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments

from stoker.contract.exits import RunError
from stoker.frameworks.trl.callback import RunCallback
from stoker.plan.interfaces import FlagNames
from stoker.rank.endings import ending_of
from stoker.rank.job import Outcome, StopRequested
from stoker.rank.pulse import Pulse

_TOKEN = "hf_a_token_of_the_hub"
# The filter is off as in our recipe. No step is logged unless we see to it.
_USUAL = {
    "max_steps": 6,
    "logging_steps": 50,
    "logging_nan_inf_filter": False,
    "report_to": "none",
    "use_cpu": True,
    "save_steps": 50,
    "disable_tqdm": True,
    "hub_token": _TOKEN,
}
_NEVER = 1000
_CASES: dict[str, tuple[int, dict[str, object]]] = {
    "broken in the last step": (6, {"save_strategy": "no"}),
    "broken before a checkpoint": (3, {"save_steps": 2}),
    "evaluated": (
        _NEVER,
        {"logging_steps": 2, "eval_strategy": "steps", "eval_steps": 3, "prediction_loss_only": True},
    ),
    "stopped": (_NEVER, {"eval_strategy": "steps", "eval_steps": 1, "prediction_loss_only": True}),
}


class Model(torch.nn.Module):
    """One weight, whose loss is no number from its nth forward pass on."""

    def __init__(self, broken_at: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.evaluated = 0
        self._sound = broken_at - 1

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss of some rows."""
        self._sound -= 1
        self.evaluated += 0 if self.training else len(x)
        return {"loss": (self.weight * (x + labels)).sum() * (1.0 if self._sound >= 0 else math.nan)}


def train(folder: Path, broken_at: int, options: dict[str, object]) -> dict[str, object]:
    """Train six steps on a CPU."""
    model = Model(broken_at)
    following = RunCallback(folder / "stop", {"fingerprint": {}}, Outcome(), Pulse(folder / "ranks", 0), lambda: None)
    arguments = TrainingArguments(str(folder / "output"), **{**_USUAL, **options})
    rows = [{"x": torch.ones(1), "labels": torch.ones(1)}] * 96
    ending = None
    try:
        Trainer(model, arguments, train_dataset=rows, eval_dataset=rows, callbacks=[following]).train()
    except (RunError, StopRequested) as error:
        verdict = ending_of(error, FlagNames())
        ending = [int(verdict.code), verdict.message]
    saved = sorted(path.name for path in (folder / "output").glob("checkpoint-*"))
    metrics = [json.loads(line) for line in (folder / "output" / "metrics.jsonl").read_text().splitlines()]
    files = [path for path in (folder / "output").rglob("*") if path.is_file()]
    told = sorted(path.name for path in files if _TOKEN.encode() in path.read_bytes())
    return {"ending": ending, "saved": saved, "evaluated": model.evaluated, "metrics": metrics, "told": told}


def main(folder: Path) -> None:
    """Run every case."""
    results = {}
    for name, (broken_at, options) in _CASES.items():
        own = folder / name
        own.mkdir()
        if name == "stopped":
            (own / "stop").touch()
        results[name] = train(own, broken_at, options)
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
