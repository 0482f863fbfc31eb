"""Train an adapter on a few sums, and ask for the answers at once: `python basic_lora_finetune.py [MODEL or URL]`.

Needs an environment with TRL, PEFT and vLLM: docs/guides/notebook.md says how to get one. With the address of a
session instead of a model, the session trains and answers.
"""

from __future__ import annotations

import sys

from stoker.lab import LoRATrainConfig, Policy, evaluate

ROWS = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a in range(10) for b in range(10)]
HELD_OUT = ROWS[::7]


def main() -> None:
    """Train, evaluate, ask."""
    model = sys.argv[1] if len(sys.argv) > 1 else "Qwen/Qwen2.5-0.5B-Instruct"
    config = LoRATrainConfig(rank=8, learning_rate=1e-3, max_length=32, output_dir="lora_output")
    with Policy(model, config) as policy:
        before = evaluate(policy, HELD_OUT)
        trained = policy.train([row for row in ROWS if row not in HELD_OUT])
        after = evaluate(policy, HELD_OUT)
        print(f"{trained.steps} steps; perplexity of new sums {before['perplexity']:.2f} → {after['perplexity']:.2f}")
        questions = [row["prompt"] for row in HELD_OUT]
        for answer in policy.generate(questions, max_tokens=4, temperature=0.0):
            print(answer.prompt, answer)
        if policy.session is None:
            policy.save_lora("lora_output/sums")
        else:
            print(f"the session has the adapter in {policy.session.saved}")


if __name__ == "__main__":
    main()
