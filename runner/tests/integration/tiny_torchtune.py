"""Write a tiny Llama 3.2 with random weights, its tokenizer and a small data set.

`python tiny_torchtune.py FOLDER [EMBED_DIM]`, in an environment with TorchTune.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torchtune.models import convert_weights
from torchtune.models.llama3._tokenizer import SPECIAL_TOKENS
from torchtune.models.llama3_2 import llama3_2

# The size of the model, as its builder and its config name it.
SIZE = {
    "vocab_size": ("vocab_size", 272),
    "num_layers": ("num_hidden_layers", 2),
    "num_heads": ("num_attention_heads", 4),
    "num_kv_heads": ("num_key_value_heads", 2),
    "embed_dim": ("hidden_size", 64),
    "max_seq_len": ("max_position_embeddings", 256),
    "intermediate_dim": ("intermediate_size", 128),
}


def main(folder: Path, embed_dim: int | None = None) -> None:
    """Write `model`, `dataset` and `preferences` into the folder, the model with another width if one is given."""
    sizes = SIZE if embed_dim is None else {**SIZE, "embed_dim": ("hidden_size", embed_dim)}
    rows = [{"instruction": f"{a}+{b}", "input": "", "output": str(a + b)} for a in range(8) for b in range(8)]
    (folder / "dataset").mkdir(parents=True)
    (folder / "dataset" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    pairs = [{"chosen": _chat(row, row["output"]), "rejected": _chat(row, "no")} for row in rows]
    (folder / "preferences").mkdir()
    (folder / "preferences" / "train.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))

    model = folder / "model"
    (model / "original").mkdir(parents=True)
    # One token for each byte, and the special tokens right after.
    ranks = (f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256))
    (model / "original" / "tokenizer.model").write_text("".join(ranks))
    added = [{"id": 256 + index, "content": token} for index, token in enumerate(SPECIAL_TOKENS)]
    (model / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))

    torch.manual_seed(0)
    size = {name: number for name, (_, number) in sizes.items()}
    state = llama3_2(**size).state_dict()
    heads = {"num_heads": size["num_heads"], "num_kv_heads": size["num_kv_heads"], "dim": size["embed_dim"]}
    weights = convert_weights.tune_to_hf(state, **heads)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, model / "model.safetensors")
    config: dict[str, object] = dict(sizes.values())
    config |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": True}
    config |= {"rope_theta": 500000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "float32"}
    (model / "config.json").write_text(json.dumps(config))


def _chat(row: dict[str, str], answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": row["instruction"]}, {"role": "assistant", "content": answer}]


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
