"""Write what the initializers of the recipes fetch, tiny: `python recipe_inputs.py FOLDER`.

FOLDER gets `model`, a Qwen 3 with random weights, its chat template and its special tokens, and for each recipe a
folder of its name with rows in the form of its data on the Hub. Runs in an environment with the trainers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl.chat_template_utils import qwen3_chat_template

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def question(a: int, b: int) -> dict[str, str]:
    """Return a message that asks for a sum."""
    return {"role": "user", "content": f"What is {a} + {b}?"}


def answer(number: int) -> dict[str, str]:
    """Return a message with a result."""
    return {"role": "assistant", "content": rf"It is \boxed{{{number}}}."}


def main(folder: Path) -> None:
    """Write everything."""
    sums = [(a, b) for a in range(10) for b in range(10)]
    data: dict[str, list[dict[str, object]]] = {
        "chat-lora": [{"messages": [question(a, b), answer(a + b)], "source": "sums"} for a, b in sums],
        "dpo-8b": [
            {
                "chosen": [question(a, b), answer(a + b)],
                "rejected": [question(a, b), answer(a + b + 1)],
                "score_chosen": 8.0,
                "score_rejected": 3.0,
            }
            for a, b in sums
        ],
        "grpo-math": [{"prompt": [question(a, b)], "solution": str(a + b)} for a, b in sums],
    }
    for name, rows in data.items():
        (folder / name).mkdir(parents=True)
        for split, part in (("train", rows[10:]), ("test", rows[:10])):
            (folder / name / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    texts = [message["content"] for a, b in sums for message in (question(a, b), answer(a + b))]
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=400, special_tokens=[*SPECIAL], initial_alphabet=alphabet)
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=SPECIAL[0], eos_token=SPECIAL[2])
    fast.chat_template = qwen3_chat_template
    fast.save_pretrained(folder / "model")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=fast.pad_token_id,
        eos_token_id=fast.eos_token_id,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder / "model")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
