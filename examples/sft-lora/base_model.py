"""Make the small base model of this example, on the spot and offline: nothing is downloaded.

The data set asks for the symbols and the atomic numbers of the chemical elements. The base model learns the way
there, not back: it reads "Fe" or "26" and says "iron", and it says which element a question is about. So it knows
the words and the chat format, but asked "What is the symbol of iron?" it says "iron". Answering is what the LoRA
run teaches on top. (LoRA on random weights learns next to nothing: a model has to be trained before it can be tuned.)

Write DIR/model (weights, tokenizer, chat template) and DIR/dataset (the data, as the trainer reads it).
Takes about 20 seconds on one CPU core; the same seed and the same versions give the same model.

Example:
    python base_model.py --data data/elements.jsonl --output /tmp/sft-lora
"""

import argparse
import json
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from datasets import Dataset, disable_progress_bars
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizerFast,
    PrinterCallback,
    Qwen2Config,
    Qwen2ForCausalLM,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    logging,
    set_seed,
)
from trl import SFTConfig, SFTTrainer

SEED = 7
EPOCHS = 12
BATCH_SIZE = 16
LEARNING_RATE = 3e-3

END_OF_TURN = "<|im_end|>"
START_OF_TURN = "<|im_start|>"
PADDING = "<|endoftext|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Row = dict[str, list[dict[str, str]]]
"""One row of the data: `prompt` and `completion`, each a list of chat messages (TRL's conversational format)."""


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def element_of(row: Row) -> str:
    """Return the element a row asks about: the last word of its question."""
    return row["prompt"][0]["content"].rstrip("?").split()[-1]


def say(element: str, prompt: str) -> Row:
    """Return a row that answers `prompt` with the name of the element."""
    return {
        "prompt": [{"role": "user", "content": prompt}],
        "completion": [{"role": "assistant", "content": element}],
    }


def base_rows(rows: list[Row]) -> list[Row]:
    """Return what the base model learns: to name the element, both from an answer and from a question."""
    from_answers = [say(element_of(row), row["completion"][0]["content"]) for row in rows]
    from_questions = [say(element_of(row), row["prompt"][0]["content"]) for row in rows]
    return from_answers + from_questions


def make_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on `texts` and give it a ChatML template."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=1024,
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=[PADDING, START_OF_TURN, END_OF_TURN],
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END_OF_TURN, pad_token=PADDING, chat_template=CHAT_TEMPLATE
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """Return a Qwen2 of about half a million random weights. Its head size, 32, is the smallest that vLLM serves."""
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            initializer_range=0.05,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


class PrintProgress(TrainerCallback):
    """Print one line whenever the trainer logs: steps done, loss, seconds since the start."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        if logs and "loss" in logs:
            step = f"step {state.global_step:4d}/{state.max_steps}"
            print(f"{step}  loss {logs['loss']:.3f}  {time.monotonic() - self.start:5.1f} s", flush=True)


def train(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, rows: list[Row], scratch: Path) -> None:
    """Train all weights of `model` on `rows`; only progress is printed, nothing is saved."""
    trainer = SFTTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
        callbacks=[PrintProgress()],
        args=SFTConfig(
            output_dir=str(scratch),
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=BATCH_SIZE,
            learning_rate=LEARNING_RATE,
            warmup_steps=20,
            seed=SEED,
            use_cpu=True,
            bf16=False,
            activation_checkpointing=False,
            save_strategy="no",
            logging_steps=60,
            report_to="none",
            disable_tqdm=True,
        ),
    )
    trainer.remove_callback(PrinterCallback)  # PrintProgress says it shorter
    trainer.train()


def main() -> None:
    """Read the options, train, and write model and data set."""
    parser = argparse.ArgumentParser(description="Make the small base model and the data set of the sft-lora example.")
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "data" / "elements.jsonl")
    parser.add_argument("--output", type=Path, required=True, help="folder to write model/ and dataset/ into")
    options = parser.parse_args()

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    torch.set_num_threads(1)  # matrices this small gain nothing from a second thread, and lose much on a busy machine
    disable_progress_bars()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    set_seed(SEED)
    rows = read_rows(options.data)
    tokenizer = make_tokenizer(message["content"] for row in rows for side in row.values() for message in side)
    model = make_model(tokenizer)
    print(f"base model: {model.num_parameters():,} weights, {len(tokenizer)} tokens, {len(rows)} rows", flush=True)
    train(model, tokenizer, base_rows(rows), options.output)

    model.save_pretrained(options.output / "model")
    tokenizer.save_pretrained(options.output / "model")
    for path in (options.output / "model").iterdir():
        path.chmod(0o664)  # weights are written for their user alone; pods of other users share the group
    dataset = options.output / "dataset"
    dataset.mkdir(exist_ok=True)
    shutil.copyfile(options.data, dataset / options.data.name)
    print(f"written: {options.output / 'model'}, {dataset}", flush=True)


if __name__ == "__main__":
    main()
