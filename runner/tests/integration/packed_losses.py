"""Print the mean loss of some samples, computed one by one and packed into one row, as JSON: argv is the attention.

Runs in an environment with the trainers; on a GPU in bfloat16 if the attention needs one.
"""

from __future__ import annotations

import json
import sys

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

LENGTHS = (5, 17, 40, 2)
VOCABULARY = 64


def main(attention: str) -> None:
    """Print both losses."""
    model = tiny_model(attention)
    device = model.device
    samples = [torch.randint(VOCABULARY, (length,), device=device) for length in LENGTHS]
    losses = [losses_of(model(sample[None], use_cache=False).logits[0], sample) for sample in samples]
    row = torch.cat(samples)[None]
    positions = torch.cat([torch.arange(length, device=device) for length in LENGTHS])[None]
    logits = model(row, position_ids=positions, use_cache=False).logits[0]
    packed = [losses_of(part, sample) for part, sample in zip(logits.split(LENGTHS), samples, strict=True)]
    print(json.dumps([torch.cat(found).mean().item() for found in (losses, packed)]))


def tiny_model(attention: str, **settings: float) -> PreTrainedModel:
    """Return a model with random weights, the same in each process."""
    torch.manual_seed(1)
    on_gpu = attention.startswith("flash")
    device, dtype = ("cuda", torch.bfloat16) if on_gpu else ("cpu", torch.float32)
    config = AutoConfig.for_model(
        "qwen3",
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=VOCABULARY,
        **settings,
    )
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype).to(device).eval()


def losses_of(logits: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
    """Return the loss of each token but the first."""
    return cross_entropy(logits[:-1].float(), sample[1:], reduction="none")


if __name__ == "__main__":
    with torch.no_grad():
        main(sys.argv[1])
