"""Write a tiny model of one of TorchTune's families with random weights: `python tiny_families.py FAMILY FOLDER`.

Prints the model's size as the builder's parameters, as JSON. Runs in an environment with TorchTune.
"""

from __future__ import annotations

import importlib
import json
import string
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from safetensors.torch import save_file
from torchtune.models import convert_weights
from torchtune.models.gemma2._convert_weights import gemma2_tune_to_hf
from torchtune.models.phi3._convert_weights import phi3_tune_to_hf
from torchtune.models.qwen2._convert_weights import qwen2_tune_to_hf
from torchtune.models.qwen2._tokenizer import bytes_to_unicode

SIZE = {
    "vocab_size": 320,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "embed_dim": 64,
    "intermediate_dim": 128,
    "max_seq_len": 256,
}
# What differs. Of Phi and Qwen the special tokens' numbers, which lie behind the real vocabulary, are fixed.
SIZES: Mapping[str, Mapping[str, Any]] = {
    "llama2": {},
    "mistral": {},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16},
    "phi3": {"vocab_size": 32064, "num_kv_heads": 4},
    "qwen2": {"vocab_size": 151665, "tie_word_embeddings": True},
}


def main(family: str, folder: Path) -> None:
    """Write weights, config and tokenizer into the folder."""
    size = {**SIZE, **SIZES[family]}
    torch.manual_seed(0)
    builder = getattr(importlib.import_module(f"torchtune.models.{family}"), family)
    heads = {"num_heads": size["num_heads"], "num_kv_heads": size["num_kv_heads"], "dim": size["embed_dim"]}
    state = builder(**size).state_dict()
    if family == "phi3":
        weights = phi3_tune_to_hf(state)
    elif family == "qwen2":
        weights = qwen2_tune_to_hf(state, **heads, tie_word_embeddings=True)
    elif family == "gemma2":
        weights = gemma2_tune_to_hf(state, **heads, head_dim=size["head_dim"])
    else:
        weights = convert_weights.tune_to_hf(state, **heads, head_dim=size.get("head_dim"))
    folder.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    config = {
        "num_attention_heads": size["num_heads"],
        "num_key_value_heads": size["num_kv_heads"],
        "hidden_size": size["embed_dim"],
        "head_dim": size.get("head_dim", size["embed_dim"] // size["num_heads"]),
        "tie_word_embeddings": size.get("tie_word_embeddings", False),
    }
    (folder / "config.json").write_text(json.dumps(config))
    if family == "qwen2":
        (folder / "vocab.json").write_text(json.dumps({c: i for i, c in enumerate(bytes_to_unicode().values())}))
        (folder / "merges.txt").write_text("#version: 0.2\n")
    else:
        _sentencepiece(folder / "tokenizer.model")
    print(json.dumps(size))


def _sentencepiece(path: Path) -> None:
    """Write a tokenizer with a token for each byte and each letter."""
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(string.printable.split() * 4),
            model_writer=file,
            model_type="char",
            vocab_size=320,
            hard_vocab_limit=False,
            byte_fallback=True,
            pad_id=3,
            minloglevel=2,
        )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
