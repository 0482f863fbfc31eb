"""PPO with vLLM in the same process: `… FOLDER alone|shared` prints what was seen, as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from runner.tests.lab.engine.tiny import write

from stoker.lab import RLHF, LabError, LoRATrainConfig, Policy, RLHFConfig
from stoker.lab.ppo.rollouts import VllmSampler

FOLDER, SHARED = Path(sys.argv[1]), sys.argv[2] == "shared"
PROMPTS = [f"{a}{b}" for a in "abcd" for b in "wxyz"]


def digits(completions: Sequence[str], **_: Any) -> list[float]:
    """Reward digits."""
    return [sum(letter.isdigit() for letter in text) / 3 for text in completions]


def main() -> None:
    """Train, then sample."""
    model: Any = {"initializer_range": 0.5, "num_hidden_layers": 1}
    folder = str(write(FOLDER / "model", "llama", **model))
    policy = Policy(folder, LoRATrainConfig(target_modules="all-linear"), share_weights=SHARED)
    config = RLHFConfig(
        max_new_tokens=3, batch_size=32, mini_batch_size=16, learning_rate=5e-3, value_learning_rate=1e-2, kl_coef=0.0,
        save_steps=0,
    )  # fmt: skip
    done = RLHF(policy, digits, config).train(PROMPTS, 16)
    sampler, prompts = VllmSampler(policy, config), [[40, 41]] * 8
    answers = []
    for _ in range(2):
        torch.manual_seed(3)
        answers.append([one.ids for one in sampler.sample([*prompts, *([[42, 43]] * 8)])])
    try:
        policy.generate(prompts, seed=[1, 2])
    except LabError as error:
        seeds = "8 prompts and 2 seeds" in str(error)
    # The base model is not sure of anything yet: whether each prompt has a seed of its own shows in its answers.
    assert policy._trainer is not None
    asked = policy._trainer.generate(prompts, max_tokens=3, seed=list(range(8)))
    policy.close()
    print(
        json.dumps(
            {
                "history": [dict(one) for one in done.history],
                "repeats": answers[0] == answers[1],
                "differs": len({tuple(answer.outputs[0].token_ids) for answer in asked}) > 1,
                "seeds": seeds,
            }
        )
    )


if __name__ == "__main__":
    main()
