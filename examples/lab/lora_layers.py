"""Train LoRA layers in a loop of your own, and have vLLM answer with them: `python lora_layers.py [MODEL]`.

Needs an environment with TRL, PEFT and vLLM: docs/guides/notebook.md says how to get one.
"""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from stoker.lab import CausalLMCollator, CausalLMDataset, CausalLMLoss, LoRAInjector, LoRATrainConfig, Policy

ROWS = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a in range(10) for b in range(10)]
BATCH = 20


def main() -> None:
    """Put layers into a model, train them, save them as PEFT does, and ask."""
    model = sys.argv[1] if len(sys.argv) > 1 else "Qwen/Qwen2.5-0.5B-Instruct"
    config = LoRATrainConfig(rank=8, learning_rate=1e-3)
    injector = LoRAInjector(config)
    network = injector.inject(AutoModelForCausalLM.from_pretrained(model))
    optimizer = torch.optim.AdamW(injector.get_trainable_params(), lr=config.learning_rate)
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows, batch_of = CausalLMDataset(ROWS, tokenizer, max_length=32), CausalLMCollator(tokenizer)
    losses = []
    for first in range(0, len(ROWS), BATCH):
        batch = batch_of([rows[number] for number in range(first, first + BATCH)])
        logits = network(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        loss = CausalLMLoss()(logits, batch["labels"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    injector.save_lora("lora_output/layers")
    with Policy(model, config, adapter="lora_output/layers") as policy:
        print(f"{len(losses)} steps; loss {losses[0]:.3f} → {losses[-1]:.3f}")
        for answer in policy.generate(["2+3=", "9+9="], max_tokens=4, temperature=0.0):
            print(answer.prompt, answer)


if __name__ == "__main__":
    main()
