"""An engine on one rank or on several: `python parallel_cases.py MODEL FOLDER`; prints what it saw as JSON.

Runs in an environment with vLLM and transformers, several times if `WORLD_SIZE` says so.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from runner.tests.lab.engine import tiny

from stoker.lab.config import LoRATrainConfig
from stoker.lab.engine.engine import TrainableEngine

OPTIONS: dict[str, Any] = {
    "max_model_len": 128,
    "max_num_seqs": 4,
    "kv_cache_memory_bytes": 2**26,
    "dtype": "float32",
}


def main(model: Path, folder: Path) -> None:
    """Train, ask, save, and load again."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    config = LoRATrainConfig(rank=4, alpha=8, target_modules="all-linear", learning_rate=1e-2)
    options = {**OPTIONS, "tensor_parallel_size": ranks}
    torch.manual_seed(int(os.environ.get("RANK", "0")))  # as scripts do that give each process its own
    engine = TrainableEngine(str(model), config, **options)
    ids = torch.tensor([engine.tokenizer("2+3=5. " * 4).input_ids])
    steps = [engine.train_step({"input_ids": ids, "labels": ids}) for _ in range(6)]
    (answer,) = engine.generate(["2+3="], max_tokens=6, temperature=0.0)
    engine.save_lora(folder)
    with torch.no_grad():
        for matrix in engine.injector.get_trainable_params():
            matrix.zero_()
    engine.load_lora(folder)
    (again,) = engine.generate(["2+3="], max_tokens=6, temperature=0.0)
    (drawn,) = engine.generate(["2+3="], max_tokens=6)
    seen = {
        "losses": [step["loss"] for step in steps],
        "norms": [step["grad_norm"] for step in steps],
        "logprobs": answer.logprobs,
        "loaded": again == answer,
        "drawn": drawn.token_ids,
    }
    engine.close()
    print(json.dumps(seen))


if __name__ == "__main__":
    if sys.argv[1] == "write":
        tiny.write(Path(sys.argv[3]), sys.argv[2])
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
