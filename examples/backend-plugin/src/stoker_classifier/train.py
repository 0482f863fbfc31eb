"""Trains a text classifier, one process of many: `python -m stoker_classifier.train --flag value …`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Any

from datasets import load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

from stoker_classifier.flags import TABLE

_TYPES: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": lambda word: word.lower() == "true",
}


def parsed(words: Sequence[str] | None) -> Namespace:
    """Return the command line, by the same table that the runner has checked it with."""
    parser = ArgumentParser(prog="python -m stoker_classifier.train", allow_abbrev=False)
    for flag in TABLE.flags.values():
        parser.add_argument(f"--{flag.name}", type=_TYPES[flag.type], default=flag.default, help=flag.help)
    parser.add_argument("--resume_from_checkpoint", help="Checkpoint to go on from; the runner chooses it.")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Train, and write the model with its labels into the output folder."""
    args = parsed(words)
    set_seed(args.seed)
    data = load_dataset(args.dataset_name, split=args.dataset_train_split)
    names = sorted(str(label) for label in set(data[args.label_column]))
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token

    def encoded(row: dict[str, Any]) -> dict[str, Any]:
        tokens: dict[str, Any] = tokenizer(row[args.text_column], truncation=True, max_length=args.max_length)
        return {**tokens, "labels": names.index(str(row[args.label_column]))}

    model = AutoModelForSequenceClassification.from_pretrained(
        args.model_name_or_path,
        num_labels=len(names),
        id2label=dict(enumerate(names)),
        label2id={name: at for at, name in enumerate(names)},
        pad_token_id=tokenizer.pad_token_id,
    )
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=args.output_dir,
            learning_rate=args.learning_rate,
            num_train_epochs=args.num_train_epochs,
            max_steps=args.max_steps,
            per_device_train_batch_size=args.per_device_train_batch_size,
            logging_steps=args.logging_steps,
            save_steps=args.save_steps,
            save_total_limit=args.save_total_limit,
            seed=args.seed,
            use_cpu=args.use_cpu,
            ddp_backend="gloo" if args.use_cpu else None,
            dataloader_pin_memory=not args.use_cpu,
            disable_tqdm=True,
            report_to="none",
        ),
        train_dataset=data.map(encoded, remove_columns=data.column_names),
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model(args.output_dir)


if __name__ == "__main__":
    main()
