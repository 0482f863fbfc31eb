"""Teach a policy to prefer short answers with DPO: `python dpo_training.py [MODEL]`.

Needs an environment with TRL, PEFT and vLLM: docs/guides/notebook.md says how to get one.
"""

from __future__ import annotations

import sys

from stoker.lab import LoRATrainConfig, Policy

PAIRS = [
    {"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": f"{a + b}, because {a} and {b} make {a + b}"}
    for a in range(10)
    for b in range(10)
]


def main() -> None:
    """Train on pairs, and show how far the policy parts from where it began."""
    model = sys.argv[1] if len(sys.argv) > 1 else "Qwen/Qwen2.5-0.5B-Instruct"
    config = LoRATrainConfig(learning_rate=1e-3, max_length=64, num_epochs=2, beta=0.1, output_dir="lora_output")
    with Policy(model, config) as policy:
        trained = policy.train(PAIRS)
        margins = [entry["rewards/margins"] for entry in trained.history if "rewards/margins" in entry]
        print(f"{trained.steps} steps; margin of the chosen answers {margins[0]:.3f} → {margins[-1]:.3f}")
        for answer in policy.generate(["2+3=", "9+9="], max_tokens=16, temperature=0.0):
            print(answer.prompt, answer)


if __name__ == "__main__":
    main()
