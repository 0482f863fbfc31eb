"""Write a tiny model with random weights and small data sets: `python tiny_inputs.py FOLDER`.

Runs in an environment with the trainers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM


def main(folder: Path) -> None:
    """Write `model` and the data sets into the folder: `dataset` (texts) and one for each other kind of method."""
    sums = [(a, b) for a in range(10) for b in range(10)]
    rows = [f"{a}+{b}={a + b}" for a, b in sums]
    data: dict[str, list[dict[str, object]]] = {
        "dataset": [{"text": row} for row in rows],
        "preferences": [{"prompt": f"{a}+{b}=", "chosen": f"{a + b}", "rejected": f"{a + b + 1}"} for a, b in sums],
        "labelled": [
            {"prompt": f"{a}+{b}=", "completion": f"{a + b + wrong}", "label": not wrong}
            for a, b in sums
            for wrong in (0, 1)
        ],
        "prompts": [{"prompt": f"{a}+{b}=", "solution": f"{a + b}"} for a, b in sums],
        "questions": [{"prompt": [{"role": "user", "content": f"{a}+{b}="}]} for a, b in sums],
    }
    for name, examples in data.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "train.jsonl").write_text("".join(json.dumps(example) + "\n" for example in examples))

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<pad>", "<eos>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(rows, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    fast.save_pretrained(folder / "model")

    config = Qwen2Config(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=fast.pad_token_id,
        eos_token_id=fast.eos_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder / "model")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
