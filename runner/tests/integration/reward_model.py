"""A tiny reward model: `python reward_model.py write MODEL FOLDER`, or `score FOLDER TEXT...` to print its scores.

`write` gives a model's tokenizer a new head with one label. Runs in an environment with the trainers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def write(model: str, folder: Path) -> None:
    """Write the reward model."""
    torch.manual_seed(0)
    made = AutoModelForSequenceClassification.from_pretrained(model, num_labels=1, dtype=torch.float32)
    torch.nn.init.normal_(made.score.weight, std=3.0)
    made.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)


def score(folder: Path, texts: list[str]) -> None:
    """Print the score of each text."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        found = [float(model(**tokenizer(text, return_tensors="pt")).logits[0, 0]) for text in texts]
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], Path(sys.argv[3]))
    else:
        score(Path(sys.argv[2]), sys.argv[3:])
