"""`stoker chat`: asks a run's result on this machine, without a server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from stoker.commands.group import PATH, reported
from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import report_error

_FORGET, _END = "/new", "/exit"


@click.command(
    "chat",
    epilog="\b\nExamples:\n"
    "  stoker chat output --base Qwen/Qwen3-0.6B\n"
    '  stoker chat output --prompt "What is the symbol of chromium?"\n'
    "  stoker chat output < questions.txt > answers.txt\n"
    "\b\nExit codes:\n"
    "   0  answered\n"
    "  64  wrong arguments\n"
    "  65  the files are not those that the run left, the conversation is too long, or a question is not UTF-8\n"
    "  66  not a finished run's result, or the base model is missing\n"
    "  78  another base model, a missing package, or too little device memory\n",
)
@click.argument("output", type=PATH)
@click.option("--base", default="", metavar="MODEL", help="Base model: a folder or a Hub name; by default the run's.")
@click.option("--prompt", metavar="TEXT", help="Ask only this question.")
@click.option("--system", default="", metavar="TEXT", help="System message for the model.")
@click.option("--max-tokens", type=click.IntRange(1), default=512, show_default=True, help="Maximum tokens per answer.")
@click.option(
    "--temperature",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="0 always takes the likeliest token.",
)
@reported
def chat_command(output: Path, base: str, prompt: str | None, system: str, max_tokens: int, temperature: float) -> None:
    """Ask the result of a finished run, with transformers on this machine.

    Answers come as they are written. On a pipe, each line is a question of the conversation, and only answers are
    written. On a terminal, /new begins anew and /exit ends.
    """
    from stoker.results.ask import Asking, Talk
    from stoker.results.folder import base_of, read_result
    from stoker.results.load import device_memory, load

    with _utf8_only():
        f"{prompt}{system}".encode()
    result = read_result(output)
    if result.is_classifier:
        raise RunError(ExitCode.USAGE, f"{result.path} is a reward model, which scores texts and does not write them")
    with device_memory("end what else uses it"):
        model, tokenizer = load(result, base_of(result, base) if result.is_adapter else None)
    talk = Talk(model, tokenizer, Asking(max_tokens, temperature, system))
    for question in _questions(prompt):
        if question == _FORGET:
            talk.forget()
            continue
        try:
            with device_memory("lower --max-tokens, or begin anew (/new)"):
                talk.ask(question, lambda piece: click.echo(piece, nl=False))
        except RunError as error:
            if prompt is not None or not sys.stdin.isatty():
                raise
            report_error(error.message)  # whoever types can write another question
        click.echo()


def _questions(prompt: str | None) -> Iterator[str]:
    if prompt is not None:
        yield prompt
        return
    is_terminal = sys.stdin.isatty()
    while True:
        try:
            with _utf8_only():
                line = f"{input('> ')}\n" if is_terminal and sys.stdout.isatty() else sys.stdin.readline()
                line.encode()
        except EOFError:
            return
        if not line or line.strip() == _END:
            return
        if line.strip():
            yield line.strip()


@contextmanager
def _utf8_only() -> Iterator[None]:
    """Refuse text that is not UTF-8. Python may let its bytes through as surrogates, which cannot be encoded.

    Raises:
        RunError: it is not UTF-8 (65).
    """
    try:
        yield
    except UnicodeError as error:
        raise RunError(ExitCode.BAD_DATA, "the questions are not UTF-8: convert them, such as with iconv") from error
