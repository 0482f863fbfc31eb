"""Print, for every family named, how its tiny model attends and its loss on some samples, as lines of JSON.

argv is `cpu` or `cuda`, an attention or `default`, and families. The loss is that of the samples one by one, by the
family's default attention; and by the one that is named packed as TRL does, packed with positions alone, padded, and
packed without telling where each begins.
`gradients` says how far those of the first two are apart, as a share of their size. Runs in an environment with the
trainers, in bfloat16 on a GPU. On CPUs a slow kernel stands for torch's FlashAttention.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from runner.tests.integration.model_shapes import EXPERTS, SIZES
from runner.tests.integration.packed_losses import LENGTHS, losses_of
from runner.tests.integration.varlen_on_cpus import varlen_on_cpus
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForCausalLM
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from stoker.frameworks.trl import varlen

# Shorter than the longest sample, for the families that have windows.
WINDOW = {"sliding_window": 16}


def main(device: str, attention: str, *families: str) -> None:
    """Print a line for each family."""
    varlen.register_varlen_attention()
    if device == "cpu":
        vars(varlen)["varlen_attn"] = varlen_on_cpus
    torch.manual_seed(0)
    samples = [torch.randint(SIZES["vocab_size"], (length,)).to(device) for length in LENGTHS]
    rows = pad_sequence(samples, batch_first=True)
    mask = pad_sequence([torch.ones_like(sample) for sample in samples], batch_first=True)
    row = torch.cat(samples)[None]
    positions = torch.cat([torch.arange(length, device=device) for length in LENGTHS])[None]
    # What TRL hands to the model: where the samples begin, too.
    collate = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    told = dict(collate([{"input_ids": sample.tolist()} for sample in samples]))
    del told["labels"]
    for family in families:
        torch.manual_seed(1)
        # Weights of the usual size make all tokens nearly as likely, whatever a sample sees.
        sizes = {**SIZES, **EXPERTS.get(family, {}), **WINDOW, "initializer_range": 0.3}
        config = AutoConfig.for_model(family, **sizes)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(device).eval()
        usual = model.config._attn_implementation

        def gradients(losses: list[torch.Tensor], model: torch.nn.Module = model) -> torch.Tensor:
            model.zero_grad()
            torch.cat(losses).mean().backward()
            return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])

        def packed(model: torch.nn.Module = model, **told: Any) -> list[torch.Tensor]:
            logits = model(**told, use_cache=False).logits[0]
            return [losses_of(part, sample) for part, sample in zip(logits.split(LENGTHS), samples, strict=True)]

        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            alone = [losses_of(model(sample[None], use_cache=False).logits[0], sample) for sample in samples]
            if attention != "default":
                model.set_attn_implementation(attention)
            padded = model(rows, attention_mask=mask, use_cache=False).logits
            found = {
                "alone": alone,
                "packed": packed(**_on(device, told)),
                "by positions": packed(input_ids=row, position_ids=positions),
                "padded": [losses_of(one[: len(sample)], sample) for one, sample in zip(padded, samples, strict=True)],
                "mixed": packed(input_ids=row, position_ids=torch.arange(sum(LENGTHS), device=device)[None]),
            }
        means = {name: torch.cat(losses).mean().item() for name, losses in found.items()}
        one, other = gradients(found["alone"]), gradients(found["packed"])
        share = ((one - other).norm() / one.norm()).item()
        print(json.dumps({"family": family, "attention": usual, "gradients": share, **means}))


def _on(device: str, told: dict[str, Any]) -> dict[str, Any]:
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in told.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
