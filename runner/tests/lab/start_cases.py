"""How vLLM starts with too little memory: `python start_cases.py FOLDER`; prints what it saw as JSON.

Runs in an environment with TRL and vLLM. FOLDER is empty.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from runner.tests.lab.engine import tiny

from stoker.lab import LabError, LoRATrainConfig, Policy, TrainableEngine

POSITIONS = 2**17
MEMORY: dict[str, Any] = {"kv_cache_memory_bytes": 2**23}


def lengths(llm: Any, answered: int) -> dict[str, int]:
    """Return the tokens that an engine takes and that its model takes, beside the tokens of an answer."""
    return {"takes": llm.model_config.max_model_len, "model": POSITIONS, "answered": answered}


def main(folder: Path) -> None:
    """Start engines that have room for less than the model takes."""
    path = str(tiny.write(folder / "model", "llama", max_position_embeddings=POSITIONS))
    said: dict[str, Any] = {}
    wrong: dict[str, dict[str, Any]] = {"too long": {"max_model_len": POSITIONS}, "wrong": {"nothing": 1}}
    for name, more in wrong.items():
        try:
            TrainableEngine(path, LoRATrainConfig(), **MEMORY, **more)
        except LabError as error:
            said[name] = str(error)
    with Policy(path, engine=MEMORY) as policy:
        (answer,) = policy.generate(["2+3="], max_tokens=2, ignore_eos=True)
        said["policy"] = lengths(policy.trainer._vllm._llm, len(answer.token_ids))
    engine = TrainableEngine(path, LoRATrainConfig(), **MEMORY)
    (answer,) = engine.generate(["2+3="], max_tokens=2)
    said["engine"] = lengths(engine.llm, 2)
    engine.close()
    print(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
