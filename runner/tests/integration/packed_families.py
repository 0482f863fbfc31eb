"""Print, for every family named, how its tiny model attends by default and its loss on some samples, as lines of JSON.

The loss is that of the samples one by one, packed, and packed without telling where each begins. Runs in an environment
with the trainers.
"""

from __future__ import annotations

import json
import sys

import torch
from runner.tests.integration.model_shapes import EXPERTS, SIZES
from runner.tests.integration.packed_losses import LENGTHS, losses_of
from transformers import AutoConfig, AutoModelForCausalLM

# Shorter than the longest sample, for the families that have windows.
WINDOW = {"sliding_window": 16}


def main(families: list[str]) -> None:
    """Print a line for each family."""
    torch.manual_seed(0)
    samples = [torch.randint(SIZES["vocab_size"], (length,)) for length in LENGTHS]
    row = torch.cat(samples)[None]
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    for family in families:
        torch.manual_seed(1)
        # Weights of the usual size make all tokens nearly as likely, whatever a sample sees.
        sizes = {**SIZES, **EXPERTS.get(family, {}), **WINDOW, "initializer_range": 0.3}
        config = AutoConfig.for_model(family, **sizes)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()

        def packed(where: torch.Tensor, model: torch.nn.Module = model) -> list[torch.Tensor]:
            logits = model(row, position_ids=where, use_cache=False).logits[0]
            return [losses_of(part, sample) for part, sample in zip(logits.split(LENGTHS), samples, strict=True)]

        found = {
            "alone": [losses_of(model(sample[None], use_cache=False).logits[0], sample) for sample in samples],
            "packed": packed(positions),
            "mixed": packed(torch.arange(sum(LENGTHS))[None]),
        }
        means = {name: torch.cat(losses).mean().item() for name, losses in found.items()}
        print(json.dumps({"family": family, "attention": model.config._attn_implementation, **means}))


if __name__ == "__main__":
    with torch.no_grad():
        main(sys.argv[1:])
