"""Versions of an adapter, and what PEFT says of answers: `python policy_versions.py write MODEL FOLDER...` or `score`.

`write` makes one LoRA adapter per folder, each of other random weights of some size. `score MODEL ANSWERS FOLDER...`
prints the log-probabilities of each answer in a JSON file, by the base model and by each adapter.

Runs in an environment with the trainers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM


def write(model: str, folders: list[str]) -> None:
    """Write an adapter into each folder."""
    for number, folder in enumerate(folders):
        torch.manual_seed(number)
        config = LoraConfig(r=8, lora_alpha=64, target_modules="all-linear", init_lora_weights=False)
        get_peft_model(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), config).save_pretrained(folder)


def score(model: str, answers: str, folders: list[str]) -> None:
    """Print a list for each answer: its tokens' log-probabilities by the base model, then by each adapter."""
    given: list[dict[str, Any]] = json.loads(Path(answers).read_text())
    found: list[list[list[float]]] = [[] for _ in given]
    for folder in (None, *folders):
        policy: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        if folder is not None:
            policy = PeftModel.from_pretrained(policy, folder)
        for answer, scores in zip(given, found, strict=True):
            ids = torch.tensor([answer["prompt"] + answer["completion"]])
            with torch.no_grad():
                logits = policy(ids).logits[0, len(answer["prompt"]) - 1 : -1] / answer["temperature"]
            chosen = torch.tensor(answer["completion"]).unsqueeze(1)
            scores.append(logits.log_softmax(-1).gather(1, chosen).squeeze(1).tolist())
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], sys.argv[3:])
    else:
        score(sys.argv[2], sys.argv[3], sys.argv[4:])
