"""Print the weights of small models of every known family, counted by transformers and PEFT, as lines of JSON.

Runs in an environment with the trainers. The models have sizes, but no memory: torch's device `meta`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {
        "num_experts": 4,
        "moe_intermediate_size": 32,
        "num_experts_per_tok": 2,
        "mlp_only_layers": [0],
        "decoder_sparse_step": 1,
    },
}
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"attention_bias": True, "tie_word_embeddings": True, "head_dim": 24},
    {"mlp_bias": True},
)
RANK = 4


def main(families: list[str]) -> None:
    """Print, for each family and variant: the configuration, all weights, and those of an adapter on all layers."""
    for family in families:
        for variant in VARIANTS:
            config = {"model_type": family, **SIZES, **EXPERTS.get(family, {}), **variant}
            options = {name: value for name, value in config.items() if name != "model_type"}
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **options))
            weights = sum(parameter.numel() for parameter in model.parameters())
            adapter = get_peft_model(model, LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM"))
            trained = sum(parameter.numel() for parameter in adapter.parameters() if parameter.requires_grad)
            print(json.dumps({"config": config, "weights": weights, "trained": trained, "rank": RANK}))


if __name__ == "__main__":
    main(sys.argv[1:])
