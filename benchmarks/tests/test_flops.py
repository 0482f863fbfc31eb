"""The arithmetic behind MFU is what torch counts in a real model, and is refused where it would not be."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from benchmarks.flops import UnknownModelError, flops_per_token, mean_context
from benchmarks.gpu_inputs import SHAPES
from benchmarks.jobs import environment

# Grouped heads, heads of another width than hidden ÷ heads, and a tied output layer.
SHAPE = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 300,
    "tie_word_embeddings": True,
}
TOKENS = 64
# Counts as torch does, for all weights and for an adapter. Eager attention multiplies with what comes later too: each
# token attends to all.
COUNT = """
import json, sys, torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3Config, Qwen3ForCausalLM
shape, tokens = json.load(sys.stdin)
model = Qwen3ForCausalLM._from_config(Qwen3Config(**shape), attn_implementation="eager")
ids = torch.randint(0, 300, (1, tokens))
for adapter in (False, True):
    if adapter:
        model = get_peft_model(model, LoraConfig(r=1, target_modules="all-linear"))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).loss.backward()
    print(counter.get_total_flops())
"""


def test_it_is_what_torch_counts() -> None:
    """An adapter is no small part of so small a model; of a real one it is about a hundredth."""
    command = [str(environment()), "-c", COUNT]
    told = json.dumps([SHAPE, TOKENS])
    counted = subprocess.run(command, input=told, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    ours = [TOKENS * flops_per_token(SHAPE, context=TOKENS, trains_all=trains_all) for trains_all in (True, False)]
    assert ours[0] == pytest.approx(float(counted[0]), rel=0.002)
    assert ours[1] == pytest.approx(float(counted[1]), rel=0.08)


def test_a_known_model() -> None:
    """Qwen3 1.7B has 1.41 billion weights in its layers and 0.31 in its output layer."""
    config = {**SHAPES["qwen3-1.7b"], "vocab_size": 151936, "num_key_value_heads": 8, "head_dim": 128}
    weights = 28 * (2 * 2048 * 128 * 24 + 3 * 2048 * 6144) + 2048 * 151936
    assert weights == pytest.approx(1.72e9, rel=0.001)
    attention = 12 * 28 * 2048
    assert flops_per_token(config, 1000, trains_all=True) == 6 * weights + attention * 1000
    assert flops_per_token(config, 1000, trains_all=False) == 4 * weights + attention * 1000


def test_heads_and_groups_have_the_usual_defaults() -> None:
    config = {key: value for key, value in SHAPE.items() if key not in ("head_dim", "num_key_value_heads")}
    same = {**SHAPE, "head_dim": 24, "num_key_value_heads": 4}
    assert flops_per_token(config, 1, True) == flops_per_token(same, 1, True)


def test_packed_samples_do_not_see_each_other() -> None:
    assert mean_context([3]) == 2
    assert mean_context([1, 1, 1]) == 1
    assert mean_context([1, 3]) == (1 + 1 + 2 + 3) / 4


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"num_experts": 8}, "has num_experts"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "has layers of sliding_attention"),
        ({"hidden_size": None}, "has no hidden_size"),
    ],
)
def test_other_models_are_refused(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(UnknownModelError, match=problem):
        flops_per_token({**SHAPE, **changed}, 1, trains_all=True)
