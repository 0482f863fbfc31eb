"""Models with random weights and a tokenizer of letters. Imported by scripts in an environment with transformers."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

LETTERS = ["<pad>", "<eos>", *string.printable]
SIZE = {
    "vocab_size": len(LETTERS),  # no multiple of what engines pad it to
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
FAMILIES: dict[str, tuple[dict[str, Any], list[str] | str]] = {
    # Its query, key and value have biases.
    "qwen2": ({"num_attention_heads": 2}, ATTENTION),
    "qwen3": ({"tie_word_embeddings": True}, ATTENTION),
    "llama": ({}, "all-linear"),
    "gemma2": ({"sliding_window": 256, "query_pre_attn_scalar": 32}, ATTENTION),
    "phi3": ({"num_attention_heads": 2, "num_key_value_heads": 1}, ["qkv_proj", "o_proj", "gate_up_proj"]),
}
# About 1.1 GB in float32.
LARGE = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 6, "num_attention_heads": 16,
         "num_key_value_heads": 8, "head_dim": 128}  # fmt: skip


def write(folder: Path, family: str, **size: int) -> Path:
    """Write a model and its tokenizer, and return the folder."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SIZE, **FAMILIES[family][0], **size})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            # Norms and biases that are all ones or zeros would hide a mistake.
            parameter.add_(torch.randn(parameter.shape[-1]) * 0.05)
    model.save_pretrained(folder)
    letters = Tokenizer(models.WordLevel({letter: index for index, letter in enumerate(LETTERS)}, "<pad>"))
    letters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=letters, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)
    return folder
