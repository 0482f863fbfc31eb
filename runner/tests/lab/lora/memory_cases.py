"""What training takes, with 1.1 GB of random weights: `python memory_cases.py ours|peft`; prints it as JSON.

Runs in an environment with torch, transformers and PEFT.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from runner.tests.lab.peak import Peak
from transformers import AutoConfig, AutoModelForCausalLM

from stoker.lab.config import LoRATrainConfig
from stoker.lab.lora.injector import LoRAInjector

SIZE = {
    "vocab_size": 128,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def main(whose: str) -> None:
    """Train two steps."""
    torch.manual_seed(0)
    with Peak() as peak:
        model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SIZE), dtype=torch.float32)
        weights = sum(parameter.nbytes for parameter in model.parameters())
        if whose == "peft":
            config = LoraConfig(r=16, lora_alpha=32, target_modules=TARGETS, task_type="CAUSAL_LM")
            model = get_peft_model(model, config)
            parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        else:
            injector = LoRAInjector(LoRATrainConfig(rank=16, alpha=32, target_modules=TARGETS))
            model = injector.inject(model)
            parameters = injector.get_trainable_params()
        optimizer = torch.optim.AdamW(parameters, lr=1e-3)
        ids = torch.randint(SIZE["vocab_size"], (2, 64))
        for _ in range(2):
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    state = [value for kept in optimizer.state.values() for value in kept.values() if torch.is_tensor(value)]
    print(json.dumps({"peak": peak.bytes, "optimizer": sum(value.nbytes for value in state), "weights": weights}))


if __name__ == "__main__":
    main(sys.argv[1])
