"""Write a model with random weights, or link one, and samples that are tokens already; in the trainer's environment.

`python gpu_inputs.py FOLDER MODEL SAMPLES LENGTH`, where MODEL is a shape's name or the folder of a model.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

# The published config.json of these models. How fast they train does not depend on the values of their weights.
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-1.7b": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "qwen3-8b": {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
}
_TOKENS = 256


def sample_lengths(samples: int, longest: int) -> list[int]:
    """Return lengths as instruction data has them, the same each time: most are short, few are long."""
    chance = random.Random(0)
    return [min(longest, max(16, round(chance.lognormvariate(5.8, 0.9)))) for _ in range(samples)]


def main(folder: Path, model: str, samples: int, longest: int) -> None:
    """Write `model` and `dataset` into the folder."""
    (folder / "dataset").mkdir()
    chance = random.Random(1)
    with (folder / "dataset" / "train.jsonl").open("w") as file:
        for length in sample_lengths(samples, longest):
            file.write(json.dumps({"input_ids": chance.choices(range(_TOKENS), k=length)}) + "\n")
    if model in SHAPES:
        write_model(folder / "model", SHAPES[model])
    else:
        (folder / "model").symlink_to(Path(model).resolve(strict=True))


def write_model(folder: Path, shape: dict[str, Any]) -> None:
    """Write a Qwen3 model with random weights, and a tokenizer of single bytes."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: number for number, word in enumerate([*alphabet, "<pad>", "<eos>"])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    fast.save_pretrained(folder)
    sizes = {"vocab_size": 151936, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960}
    config = Qwen3Config(
        **{**sizes, **shape}, pad_token_id=fast.pad_token_id, eos_token_id=fast.eos_token_id, dtype="bfloat16"
    )
    torch.set_default_dtype(torch.bfloat16)
    # Drawing billions of random numbers takes minutes on CPUs.
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
