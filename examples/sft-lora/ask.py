"""Ask the base model and the tuned model every question of the data and show how many answers are right.

Print a sample of the answers side by side, then the two scores. Runs offline on one CPU core in a few seconds.
Either with transformers, from the folders of model and adapter, or from a server with the OpenAI API that has both,
which needs nothing but Python. The server's key, if it wants one, is in the variable API_KEY.
Exit code: 0 if the adapter answers more questions right than the base model alone, else 1.

Examples:
    python ask.py --model demo/model --adapter demo/workspace/output
    python ask.py --model demo/model --adapter demo/workspace/output --json
    API_KEY=secret python ask.py --server http://elements --base base --tuned tuned
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import urllib.request
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import GenerationMixin, PreTrainedTokenizerBase

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


def ask_folders(model_folder: Path, adapter_folder: Path, questions: Sequence[str]) -> tuple[list[str], list[str]]:
    """Ask every question with transformers, first without the adapter and then with it."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    torch.set_num_threads(1)  # matrices this small gain nothing from a second thread
    warnings.simplefilter("ignore", FutureWarning)  # of the libraries among themselves
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(model_folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    base = say(model, tokenizer, questions)
    return base, say(PeftModel.from_pretrained(model, adapter_folder), tokenizer, questions)


def ask_server(server: str, name: str, questions: Sequence[str]) -> list[str]:
    """Return what one of a server's models answers to each question.

    Raises:
        OSError: the server does not answer, or refuses.
    """

    def answer(question: str) -> str:
        chat = {
            "model": name,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": LONGEST_ANSWER,
            "temperature": 0,
        }
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('API_KEY', '')}"}
        request = urllib.request.Request(f"{server}/v1/chat/completions", json.dumps(chat).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as reply:
            return str(json.load(reply)["choices"][0]["message"]["content"]).strip()

    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(answer, questions))


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
    parser.add_argument("--model", type=Path, help="folder of the base model")
    parser.add_argument("--adapter", type=Path, help="folder of the LoRA adapter")
    parser.add_argument("--server", metavar="URL", help="ask this server instead, such as http://127.0.0.1:8000")
    parser.add_argument("--base", default="base", metavar="NAME", help="what it calls the base model (default: base)")
    parser.add_argument("--tuned", default="tuned", metavar="NAME", help="what it calls the adapter (default: tuned)")
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "data" / "elements.jsonl")
    parser.add_argument("--sample", type=int, default=10, metavar="N", help="answers to print (default: 10)")
    parser.add_argument("--json", action="store_true", help="print all answers and both scores as JSON")
    options = parser.parse_args()
    if not options.server and not (options.model and options.adapter):
        parser.error("name folders by --model and --adapter, or a server by --server")
    folders = [] if options.server else [options.model / "config.json", options.adapter / "adapter_config.json"]
    for path in (*folders, options.data):
        if not path.is_file():
            parser.error(f"{path} does not exist: has the step that makes it finished?")

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a traceback
    rows = [json.loads(line) for line in options.data.read_text(encoding="utf-8").splitlines()]
    questions = [row["prompt"][0]["content"] for row in rows]
    expected = [row["completion"][0]["content"] for row in rows]
    if options.server:
        try:
            base, tuned = (ask_server(options.server, name, questions) for name in (options.base, options.tuned))
        except OSError as error:
            sys.exit(f"ask.py: error: {options.server} does not answer: {error}")
    else:
        base, tuned = ask_folders(options.model, options.adapter, questions)
    answers = [Answer(*answer) for answer in zip(questions, expected, base, tuned, strict=True)]
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
