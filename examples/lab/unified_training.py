"""All of it in one script: train, ask, prefer, reward, publish: `python unified_training.py [MODEL]`.

Needs an environment with TRL, PEFT and vLLM: docs/guides/notebook.md says how to get one.
"""

from __future__ import annotations

import sys
from typing import Any

from stoker.lab import RLHF, LoRATrainConfig, Policy, RLHFConfig, evaluate

SUMS = [(a, b) for a in range(10) for b in range(10)]
ROWS = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a, b in SUMS]
PAIRS = [
    {"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": f"{a + b}, because {a} and {b} make {a + b}"}
    for a, b in SUMS
]
QUESTIONS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a, b in SUMS]


def right(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """Reward right sums; other columns of the prompts' rows come as arguments."""
    return [float(text.strip() == wanted) for text, wanted in zip(completions, answer, strict=True)]


def main() -> None:
    """Train, ask, prefer, reward, publish; the policy is one, and answers as it was trained last."""
    model = sys.argv[1] if len(sys.argv) > 1 else "Qwen/Qwen2.5-0.5B-Instruct"
    config = LoRATrainConfig(learning_rate=1e-3, max_length=64, num_epochs=1, output_dir="lora_output")
    # The policy stays close to what it is when the rewards begin, not to the base model.
    rewarded = RLHFConfig(
        max_new_tokens=4, batch_size=32, mini_batch_size=16, reference="start", save_steps=0, output_dir="rlhf_output"
    )
    with Policy(model, config) as policy:

        def ask(after: str) -> None:
            (answer,) = policy.generate(["2+3="], max_tokens=4, temperature=0.0)
            print(f"after {after}: 2+3={answer}")

        ask("nothing")
        trained = policy.train(ROWS)
        print(f"train: {trained.steps} steps; perplexity {evaluate(policy, ROWS)['perplexity']:.2f}")
        ask("training")
        preferred = policy.train(PAIRS)
        print(f"prefer: {preferred.steps} steps; loss {preferred.loss:.3f}")
        ask("preferences")
        learned = RLHF(policy, right, rewarded).train(QUESTIONS, num_steps=5)
        rewards = [seen["reward"] for seen in learned.history]
        print(f"reward: {learned.steps} steps; reward {rewards[0]:.3f} → {rewards[-1]:.3f}")
        ask("rewards")
        print(f"published as {policy.publish('adapters', 'sums')}")


if __name__ == "__main__":
    main()
