"""Make the small base model of this example, on the spot and offline: nothing is downloaded.

The model adds two digits. It has seen as many wrong answers as right ones for every sum, so it knows which answer is
the likeliest and yet gives it only about half of the time. Reinforcement learning brings out what it knows: the reward
is 1 for the right sum and 0 for any other.

Write DIR/model (weights, tokenizer) and DIR/dataset (all one hundred sums). Takes about a minute on one CPU core; the
same seed and the same versions give the same model. With --words the sums are asked and answered in words, in the form
of GSM8K.

Example:
    python adding_model.py --output /tmp/async-grpo
"""

import argparse
import json
import random
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, logging, set_seed

SEED = 7
STEPS = {False: 1500, True: 400}
BATCH_SIZE = {False: 64, True: 32}
"""In words an example has seven times as many tokens."""
LEARNING_RATE = 2e-3
RIGHT = 0.45
"""How often an answer in the base model's data is right."""

PADDING, END = "<pad>", "<end>"


INSTRUCTION = (
    "You are a helpful math assistant. Solve the following problem step by step. "
    "End with '#### <answer>' where <answer> is just the number."
)
NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Ida", "Jonas")
THINGS = ("apples", "books", "cards", "dolls", "eggs", "figs", "games", "hats", "jars", "kites")


@dataclass(frozen=True, slots=True)
class Task:
    """A sum of two digits.

    Attributes:
        prompt: how it is asked.
        completion: how it is answered, with {} for the number.
        right: the right number.
    """

    prompt: str
    completion: str
    right: int

    @property
    def row(self) -> dict[str, str]:
        """The row of the data set, as TRL's GRPO reads it, with the answer for the reward."""
        return {"prompt": self.prompt, "answer": self.completion.format(self.right).strip()}


def tasks(words: bool) -> list[Task]:
    """Return every sum of two digits."""
    pairs = [(a, b) for a in range(10) for b in range(10)]
    return [in_words(a, b) if words else Task(f"{a}+{b}=", "{}", a + b) for a, b in pairs]


def in_words(a: int, b: int) -> Task:
    """Return a sum as a word problem."""
    name, things = NAMES[a], THINGS[b]
    question = f"{name} has {a} {things} and gets {b} more. How many {things} does {name} have?"
    prompt = f"{INSTRUCTION}\n\nQuestion: {question}\n\nSolution:"
    return Task(prompt, f" {a} + {b} = {{0}}\n#### {{0}}", a + b)


def make_tokenizer(every: list[Task], words: bool) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are characters, or words with what separates them from those before."""
    pattern, alphabet = ".", list("0123456789+=")
    if words:
        pattern = r"\s*\S+"
        texts = [task.prompt + task.completion.format(number) for task in every for number in range(19)]
        alphabet = sorted({token for text in texts for token in re.findall(pattern, text)})
    tokens = [PADDING, END, *alphabet]
    model = models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token=PADDING)
    pieces = Tokenizer(model)
    pieces.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    pieces.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token=END, pad_token=PADDING)


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
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
    )


def batch(
    tokenizer: PreTrainedTokenizerFast, every: list[Task], size: int, draw: random.Random, right: float
) -> torch.Tensor:
    """Return token ids of some sums with answers, right or wrong, padded on the right."""
    texts = []
    for task in draw.choices(every, k=size):
        number = task.right if draw.random() < right else draw.randrange(19)
        texts.append(task.prompt + task.completion.format(number))
    ids = [[*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for text in texts]
    longest = max(map(len, ids))
    return torch.tensor([row + [tokenizer.pad_token_id] * (longest - len(row)) for row in ids])


def train(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, every: list[Task], steps: int, size: int, right: float
) -> None:
    """Train all weights on random batches; only progress is printed."""
    draw, start = random.Random(SEED), time.monotonic()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train()
    for step in range(1, steps + 1):
        ids = batch(tokenizer, every, size, draw, right)
        padding = ids == tokenizer.pad_token_id
        loss = model(input_ids=ids, attention_mask=~padding, labels=ids.masked_fill(padding, -100)).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % (steps // 4) == 0:
            print(f"step {step:4d}/{steps}  loss {loss:.3f}  {time.monotonic() - start:5.1f} s", flush=True)
    model.eval()


def main() -> None:
    """Read the options, train, and write model and data set."""
    parser = argparse.ArgumentParser(description="Make the base model and the data set of the async-grpo example.")
    parser.add_argument("--output", type=Path, required=True, help="folder to write model/ and dataset/ into")
    parser.add_argument("--words", action="store_true", help="ask and answer in words, in the form of GSM8K")
    parser.add_argument("--steps", type=int, help="how long to train it (default: 1500, in words 400)")
    parser.add_argument("--right", type=float, default=RIGHT, help="share of right answers (default: %(default)s)")
    options = parser.parse_args()

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    torch.set_num_threads(1)  # matrices this small gain nothing from a second thread
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    set_seed(SEED)
    every = tasks(options.words)
    tokenizer = make_tokenizer(every, options.words)
    model = make_model(tokenizer)
    print(f"base model: {model.num_parameters():,} weights, {len(tokenizer)} tokens, {len(every)} sums", flush=True)
    steps = options.steps or STEPS[options.words]
    train(model, tokenizer, every, steps, BATCH_SIZE[options.words], options.right)

    model.save_pretrained(options.output / "model")
    tokenizer.save_pretrained(options.output / "model")
    for path in (options.output / "model").iterdir():
        path.chmod(0o664)  # weights are written for their user alone; pods of other users share the group
    dataset = options.output / "dataset"
    dataset.mkdir(parents=True, exist_ok=True)
    (dataset / "sums.jsonl").write_text("".join(f"{json.dumps(task.row)}\n" for task in every))
    print(f"written: {options.output / 'model'}, {dataset}", flush=True)


if __name__ == "__main__":
    main()
