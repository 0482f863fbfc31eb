"""Teach a policy to answer in digits alone, with PPO: `python rlhf_ppo.py [MODEL]`.

Needs an environment with TRL, PEFT and vLLM: docs/guides/notebook.md says how to get one.
"""

from __future__ import annotations

import sys
from typing import Any

from stoker.lab import RLHF, LoRATrainConfig, Policy, RLHFConfig

PROMPTS = [f"{a}+{b}=" for a in range(10) for b in range(10)]


def digits(completions: list[str], **_: Any) -> list[float]:
    """Reward the part of each answer that is digits: a function as TRL's `reward_funcs` are."""
    return [sum(letter.isdigit() for letter in text) / max(len(text), 1) for text in completions]


def main() -> None:
    """Train with rewards, and ask."""
    model = sys.argv[1] if len(sys.argv) > 1 else "Qwen/Qwen2.5-0.5B-Instruct"
    config = RLHFConfig(
        max_new_tokens=8, batch_size=32, mini_batch_size=16, learning_rate=5e-4, save_steps=5, output_dir="rlhf_output"
    )
    with Policy(model, LoRATrainConfig(target_modules="all-linear")) as policy:
        # To go on from the newest checkpoint, run it again with resume=True and more steps.
        trained = RLHF(policy, digits, config).train(
            PROMPTS, num_steps=10, on_step=lambda seen: print(f"step {seen['step']}: reward {seen['reward']:.3f}")
        )
        first, last = trained.history[0], trained.history[-1]
        print(f"{trained.steps} steps; reward {first['reward']:.3f} → {last['reward']:.3f}, KL {last['kl']:.3f} nat")
        for answer in policy.generate(["2+3=", "9+9="], max_tokens=8, temperature=0.0):
            print(answer.prompt, answer)


if __name__ == "__main__":
    main()
