"""Models of one shape, and what each gives: `… make MODEL FOLDER` and `… score MODEL`. Runs where transformers is.

`make` writes `base`, whose head shares its weights with the embeddings, and `trained`, all of whose weights are others.
`score` prints the log-probability of each token of a fixed text but the first, as JSON.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

TOKENS = [5, 40, 41, 17, 99, 3, 250, 77]


def make(model: Path, folder: Path) -> None:
    """Write both models."""
    found: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, tie_word_embeddings=True)
    found.tie_weights()
    torch.manual_seed(0)
    for name in ("base", "trained"):
        shutil.copytree(model, folder / name, ignore=shutil.ignore_patterns("*.safetensors"))
        if name == "trained":
            with torch.no_grad():
                for parameter in found.parameters():
                    parameter += 0.3 * torch.randn(parameter.shape)
        found.save_pretrained(folder / name)


def score(model: Path) -> list[float]:
    """Return the log-probabilities."""
    found: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.no_grad():
        scores = found(torch.tensor([TOKENS])).logits[0, :-1].log_softmax(-1)
    chosen: list[float] = scores.gather(1, torch.tensor(TOKENS[1:]).unsqueeze(1)).squeeze(1).tolist()
    return chosen


if __name__ == "__main__" and sys.argv[1] == "make":
    make(Path(sys.argv[2]), Path(sys.argv[3]))
elif __name__ == "__main__":
    print(json.dumps({"tokens": TOKENS, "scores": score(Path(sys.argv[2]))}))
