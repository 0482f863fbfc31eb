"""Train the very weights that vLLM answers with, step by step: `python one_engine.py [MODEL]`.

Needs an environment with TRL, PEFT and vLLM: docs/guides/notebook.md says how to get one.
"""

from __future__ import annotations

import sys

from stoker.lab import CausalLMCollator, CausalLMDataset, LoRATrainConfig, TrainableEngine

ROWS = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a in range(10) for b in range(10)]
BATCH = 20


def main() -> None:
    """Train, and ask between the steps: each answer is by the last step, with no file and no second copy in between."""
    model = sys.argv[1] if len(sys.argv) > 1 else "Qwen/Qwen2.5-0.5B-Instruct"
    config = LoRATrainConfig(rank=8, learning_rate=1e-3)
    with TrainableEngine(model, config, max_model_len=128) as engine:
        rows = CausalLMDataset(ROWS, engine.tokenizer, max_length=32)
        batch_of = CausalLMCollator(engine.tokenizer)
        losses = []
        for first in range(0, len(ROWS), BATCH):
            batch = batch_of([rows[number] for number in range(first, first + BATCH)])
            losses.append(engine.train_step(batch)["loss"])
            (answer,) = engine.generate(["2+3="], max_tokens=4, temperature=0.0)
            print(f"loss {losses[-1]:.3f}; 2+3={answer}")
        print(f"{len(losses)} steps; loss {losses[0]:.3f} → {losses[-1]:.3f}")
        (base,) = engine.generate(["2+3="], max_tokens=4, temperature=0.0, adapter=False)
        print(f"the base model still says 2+3={base}")
        engine.save_lora("lora_output/engine")


if __name__ == "__main__":
    main()
