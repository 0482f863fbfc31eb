"""Scores of one reward model in two places: `python served_rewards.py MODEL FOLDER URL` prints both, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from stoker.lab import RLHF, Policy, RLHFConfig

MODEL, FOLDER, URL = sys.argv[1:]
TURNS = [[{"role": "user", "content": f"{a}+{a}="}] for a in range(4)]
FORMS: dict[str, list[Any]] = {"texts": [turn["content"] for (turn,) in TURNS], "conversations": TURNS}
SAID = ["3", "4", "1234567", "no"]


def main() -> None:
    """Score."""
    policy = Policy(MODEL)
    judges = [RLHF(policy, reward, RLHFConfig()) for reward in (URL, FOLDER)]
    found = {
        name: [judge.compute_rewards(prompts, SAID).tolist() for judge in judges] for name, prompts in FORMS.items()
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
