"""Answers of an engine that generates with transformers: `python answer_cases.py FOLDER`; prints what it saw as JSON.

Runs in an environment with transformers. FOLDER is empty.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from runner.tests.lab.engine import tiny
from transformers import PreTrainedModel

from stoker.lab.config import LoRATrainConfig
from stoker.lab.engine.engine import TrainableEngine


def ends(engine: TrainableEngine) -> dict[str, Any]:
    """Return how answers end by the tokenizer's end of text, where the model names none."""
    answer = engine.generate(["2+3="], max_tokens=4, temperature=0.0)[0]
    engine.model.generation_config.eos_token_id = engine.model.config.eos_token_id = None
    engine.tokenizer.eos_token = engine.tokenizer.convert_ids_to_tokens(answer.token_ids[0])
    found = [engine.generate(["2+3="], max_tokens=room, temperature=0.0)[0] for room in (1, 4)]
    return {"before": answer.finish, "tokens": [len(one.token_ids) for one in found], "ends": [f.finish for f in found]}


def devices(path: Path) -> list[list[str]]:
    """Return where a model is moved to on a machine with a GPU: by the engine, and if the user says where it goes."""
    found = []
    for arguments in ({}, {"device_map": "cpu"}):
        moved: list[str] = []
        with (
            mock.patch.object(torch.cuda, "is_available", return_value=True),
            mock.patch.object(torch.cuda, "is_bf16_supported", return_value=True),
            mock.patch.object(PreTrainedModel, "to", lambda model, where, moved=moved: moved.append(where) or model),
        ):
            TrainableEngine(str(path), LoRATrainConfig(rank=4, dtype="float32"), "transformers", **arguments)
        found.append(moved)
    return found


def main(folder: Path) -> None:
    """Look at everything."""
    path = tiny.write(folder / "model", "llama")
    engine = TrainableEngine(str(path), LoRATrainConfig(rank=4), "transformers")
    print(json.dumps({"ends": ends(engine), "devices": devices(path)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
