"""What an engine takes, with 1.1 GB of random weights, as JSON: `python memory_cases.py write|alone|both|copy MODEL`.

`alone` is vLLM with the same loader, `both` trains and serves, `copy` does it with a second copy of the weights. Runs
in an environment with vLLM and transformers.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from runner.tests.lab.engine import tiny
from runner.tests.lab.peak import Peak

from stoker.lab.config import LoRATrainConfig
from stoker.lab.engine.engine import TrainableEngine

ENGINE = {"max_model_len": 256, "max_num_seqs": 4, "kv_cache_memory_bytes": 2**26, "dtype": "float32"}
ASKED = "2+3=" * 4


def main(case: str, path: Path) -> None:
    """Do one of the cases."""
    if case == "write":
        tiny.write(path, "llama", **tiny.LARGE)
        return
    with Peak() as peak:
        if case == "alone":
            _alone(path)
        else:
            _both(path, case == "copy")
    print(json.dumps({"peak": peak.bytes, "weights": (path / "model.safetensors").stat().st_size}))


def _alone(path: Path) -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    from stoker.lab.engine.loader import LOAD_FORMAT

    options: dict[str, Any] = ENGINE
    llm = LLM(model=str(path), load_format=LOAD_FORMAT, enforce_eager=True, **options)
    llm.generate([ASKED], SamplingParams(max_tokens=8))


def _both(path: Path, copy: bool) -> None:
    options: dict[str, Any] = ENGINE
    engine = TrainableEngine(str(path), LoRATrainConfig(), **options)
    if copy:
        for parameter in engine.model.parameters():
            if not parameter.requires_grad:
                parameter.data = parameter.data.clone()
    ids = torch.tensor([engine.tokenizer(ASKED).input_ids])
    for _ in range(2):
        engine.train_step({"input_ids": ids, "labels": ids})
        engine.generate([ASKED], max_tokens=8)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
