"""Ask with seeds for prompts that an engine reads in parts: `python seed_cases.py MODEL` prints what fails, as JSON.

Runs in an environment with vLLM. MODEL is a tiny model.
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

from stoker.lab import LoRATrainConfig, Policy

PROMPTS = ["+".join(map(str, range(start, start + 12))) + "=" for start in range(8)]


def written(**engine: Any) -> list[tuple[int, ...]]:
    """Return what an engine with these arguments writes."""
    policy = Policy(sys.argv[1], LoRATrainConfig(), engine={"max_num_seqs": 8, **engine})
    answers = policy.generate(PROMPTS, seed=[*range(len(PROMPTS))], max_tokens=8, temperature=1.0)
    policy.close()
    return [tuple(answer.token_ids) for answer in answers]


def main() -> None:
    """A seed decides the answer, however many steps the prompt takes."""
    whole = written()
    assert len({*whole}) > 1
    assert written(max_num_batched_tokens=16) == whole


if __name__ == "__main__":
    try:
        main()
    except Exception:  # noqa: BLE001 - whatever it is, the case fails
        print(json.dumps({"main": traceback.format_exc()}), flush=True)
    else:
        print(json.dumps({}), flush=True)
