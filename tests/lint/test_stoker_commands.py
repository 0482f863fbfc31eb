"""Each command of `stoker` that a document shows exists, with these options: its own parser reads it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from lint.files import lines, markdown_files, report
from lint.snippets import CODE_SPAN, snippets
from stoker.commands.main import main

# Where a command begins: after what starts or joins commands, and after variables of its own.
COMMAND = re.compile(r"(?:^|[|;&(`]|\$ |\bsudo |\bdo )\s*(?:[A-Z_]+=\S+ )*stoker (?P<words>[^\n|;&)`]+)", re.MULTILINE)
COMMENT = re.compile(r"(?:^|\s)#.*$", re.MULTILINE)


def refusal(words: str) -> str:
    """Return why the command line does not take these words after `stoker`; empty if it does."""
    left = shlex.split(words.split("…", maxsplit=1)[0])
    command: click.Command = main
    path = "stoker"
    while isinstance(command, click.Group) and left and not left[0].startswith("-"):
        found = command.commands.get(left[0])
        if found is None:
            return f"{path} has no command {left[0]}, but: {', '.join(command.commands)}"
        command, path, left = found, f"{path} {left[0]}", left[1:]
    try:
        command.make_parser(click.Context(command, **command.context_settings)).parse_args(left)
    except click.UsageError as error:
        return f"{path}: {error.format_message()}"
    return ""


def shown() -> Iterator[tuple[str, str]]:
    """Yield what stands after `stoker` in code blocks and spans, with its place."""
    for snippet in snippets("sh", "bash", "console"):
        text = COMMENT.sub("", snippet.text.replace("\\\n", " "))
        for found in COMMAND.finditer(text):
            yield snippet.where, found["words"]
    for path in markdown_files():
        for number, line in lines(path):
            for span in CODE_SPAN.findall(line):
                if whole := re.fullmatch(r"stoker ([^|;&()<>]+)", span):
                    yield f"{path}:{number}", whole[1]


def test_commands_in_documents_are_ones() -> None:
    all_shown = list(shown())
    assert len(all_shown) > 150
    findings = [f"{where}: `stoker {words.strip()}`: {why}" for where, words in all_shown if (why := refusal(words))]
    report(findings, "Write commands and options as `stoker COMMAND --help` names them.")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("get first-run ./first-run --all", ""),
        ("adapters publish output adapters support", ""),
        ("plan --max_steps 3 --anything", ""),
        ("gett first-run", "stoker has no command gett"),
        ("adapters publsh", "stoker adapters has no command publsh"),
        ("evaluate output --format json", "stoker evaluate: No such option"),
        ("logs tune --tail", "stoker logs: Option '--tail' requires an argument"),
    ],
)
def test_what_is_no_command_is_told(words: str, told: str) -> None:
    assert refusal(words).startswith(told)
    assert bool(refusal(words)) == bool(told)


def test_commands_are_found_behind_pipes_and_in_loops() -> None:
    text = "$ stoker runs\nA=1 stoker plan x | stoker validate - \nfor a in b; do stoker stop $a; done"
    assert [found["words"].strip() for found in COMMAND.finditer(text)] == ["runs", "plan x", "validate -", "stop $a"]


def test_each_document_is_read() -> None:
    assert {Path("README.md"), Path("docs/guides/watch-runs.md")} <= {
        Path(where.partition(":")[0]) for where, _ in shown()
    }
