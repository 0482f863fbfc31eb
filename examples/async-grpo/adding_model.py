"""Make the small base model of this example, on the spot and offline: nothing is downloaded.

The model adds two digits. It has seen as many wrong answers as right ones for every sum, so it knows which answer is
the likeliest and yet gives it only about half of the time. Reinforcement learning brings out what it knows: the reward
is 1 for the right sum and 0 for any other.

Write DIR/model (weights, tokenizer) and DIR/dataset (all one hundred sums). Takes about a minute on one CPU core; the
same seed and the same versions give the same model.

Example:
    python adding_model.py --output /tmp/async-grpo
"""

import argparse
import json
import random
import signal
import time
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, logging, set_seed

SEED = 7
STEPS = 1500
BATCH_SIZE = 64
LEARNING_RATE = 2e-3
RIGHT = 0.45
"""How often an answer in the base model's data is right."""

PADDING, END = "<pad>", "<end>"


def sums() -> list[dict[str, str]]:
    """Return the data set: every sum of two digits, as TRL's GRPO reads it, with the answer for the reward."""
    return [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(10) for b in range(10)]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are characters."""
    tokens = [PADDING, END, *"0123456789+="]
    characters = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token=PADDING))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    characters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=characters, eos_token=END, pad_token=PADDING)


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Return a Qwen3 of about 0.4 million random weights. Its head size, 32, is the smallest that vLLM serves."""
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
    )


def batch(tokenizer: PreTrainedTokenizerFast, rows: list[dict[str, str]], draw: random.Random) -> torch.Tensor:
    """Return token ids of some sums with answers, right or wrong, padded on the right."""
    texts = []
    for row in draw.choices(rows, k=BATCH_SIZE):
        answer = row["answer"] if draw.random() < RIGHT else str(draw.randrange(19))
        texts.append(f"{row['prompt']}{answer}")
    ids = [[*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for text in texts]
    longest = max(map(len, ids))
    return torch.tensor([row + [tokenizer.pad_token_id] * (longest - len(row)) for row in ids])


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, rows: list[dict[str, str]]) -> None:
    """Train all weights on random batches; only progress is printed."""
    draw, start = random.Random(SEED), time.monotonic()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    model.train()
    for step in range(1, STEPS + 1):
        ids = batch(tokenizer, rows, draw)
        padding = ids == tokenizer.pad_token_id
        loss = model(input_ids=ids, attention_mask=~padding, labels=ids.masked_fill(padding, -100)).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 250 == 0:
            print(f"step {step:4d}/{STEPS}  loss {loss:.3f}  {time.monotonic() - start:5.1f} s", flush=True)
    model.eval()


def main() -> None:
    """Read the options, train, and write model and data set."""
    parser = argparse.ArgumentParser(description="Make the base model and the data set of the async-grpo example.")
    parser.add_argument("--output", type=Path, required=True, help="folder to write model/ and dataset/ into")
    options = parser.parse_args()

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    torch.set_num_threads(1)  # matrices this small gain nothing from a second thread
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    set_seed(SEED)
    rows, tokenizer = sums(), make_tokenizer()
    model = make_model(tokenizer)
    print(f"base model: {model.num_parameters():,} weights, {len(tokenizer)} tokens, {len(rows)} sums", flush=True)
    train(model, tokenizer, rows)

    model.save_pretrained(options.output / "model")
    tokenizer.save_pretrained(options.output / "model")
    for path in (options.output / "model").iterdir():
        path.chmod(0o664)  # weights are written for their user alone; pods of other users share the group
    dataset = options.output / "dataset"
    dataset.mkdir(parents=True, exist_ok=True)
    (dataset / "sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    print(f"written: {options.output / 'model'}, {dataset}", flush=True)


if __name__ == "__main__":
    main()
