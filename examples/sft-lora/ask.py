"""Ask the base model and the tuned model every question of the data and show how many answers are right.

Print a sample of the answers side by side, then the two scores. Runs offline on one CPU core in a few seconds.
Exit code: 0 if the adapter answers more questions right than the base model alone, else 1.

Examples:
    python ask.py --model demo/model --adapter demo/workspace/output
    python ask.py --model demo/model --adapter demo/workspace/output --json
"""

import argparse
import json
import signal
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationMixin,
    PreTrainedTokenizerBase,
    logging,
)

BATCH_SIZE = 64
LONGEST_ANSWER = 16
"""In tokens; every answer of the data takes two or three."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One question and what was said to it.

    Attributes:
        question: as the user asks it.
        expected: the right answer.
        base: what the base model says.
        tuned: what the base model with the adapter says.
    """

    question: str
    expected: str
    base: str
    tuned: str


def say(model: GenerationMixin, tokenizer: PreTrainedTokenizerBase, questions: Sequence[str]) -> list[str]:
    """Return the model's most likely answer to each question."""
    answers: list[str] = []
    for start in range(0, len(questions), BATCH_SIZE):
        chats = [[{"role": "user", "content": question}] for question in questions[start : start + BATCH_SIZE]]
        inputs = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, padding=True, return_dict=True, return_tensors="pt"
        )
        tokens = model.generate(**inputs, max_new_tokens=LONGEST_ANSWER, do_sample=False)
        said = tokens[:, inputs["input_ids"].shape[1] :]
        answers += [text.strip() for text in tokenizer.batch_decode(said, skip_special_tokens=True)]
    return answers


def ask(model_folder: Path, adapter_folder: Path, data: Path) -> list[Answer]:
    """Ask every question of `data`, first without the adapter and then with it."""
    rows = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
    questions = [row["prompt"][0]["content"] for row in rows]
    expected = [row["completion"][0]["content"] for row in rows]
    tokenizer = AutoTokenizer.from_pretrained(model_folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    base = say(model, tokenizer, questions)
    tuned = say(PeftModel.from_pretrained(model, adapter_folder), tokenizer, questions)
    return [Answer(*answer) for answer in zip(questions, expected, base, tuned, strict=True)]


def table(answers: Sequence[Answer]) -> str:
    """Return the answers as a text table with one line for each."""
    lines = [("question", "base model", "with adapter", "right answer")]
    lines += [(answer.question, answer.base, answer.tuned, answer.expected) for answer in answers]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def main() -> None:
    """Read the options, ask, and print."""
    parser = argparse.ArgumentParser(
        description="Asks base model and tuned model every question of the data; exit code 1 if tuning did not help."
    )
    parser.add_argument("--model", type=Path, required=True, help="folder of the base model")
    parser.add_argument("--adapter", type=Path, required=True, help="folder of the LoRA adapter")
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "data" / "elements.jsonl")
    parser.add_argument("--sample", type=int, default=10, metavar="N", help="answers to print (default: 10)")
    parser.add_argument("--json", action="store_true", help="print all answers and both scores as JSON")
    options = parser.parse_args()
    for path in (options.model / "config.json", options.adapter / "adapter_config.json", options.data):
        if not path.is_file():
            parser.error(f"{path} does not exist: has the step that makes it finished?")

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    torch.set_num_threads(1)  # matrices this small gain nothing from a second thread
    warnings.simplefilter("ignore", FutureWarning)  # of the libraries among themselves
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    answers = ask(options.model, options.adapter, options.data)
    before = sum(answer.base == answer.expected for answer in answers)
    after = sum(answer.tuned == answer.expected for answer in answers)
    if options.json:
        scores = {"questions": len(answers), "right_before": before, "right_after": after}
        print(json.dumps({**scores, "answers": [asdict(answer) for answer in answers]}, indent=2))
    else:
        print(table(answers[:: max(1, len(answers) // options.sample)][: options.sample]))
        print(f"\nright: {before} of {len(answers)} before tuning, {after} of {len(answers)} after")
    sys.exit(0 if after > before else 1)


if __name__ == "__main__":
    main()
