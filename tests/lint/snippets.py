"""What there is to copy: the code blocks of the documents, and the examples' manifests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lint.files import markdown_files, texts, yaml_files

CODE_SPAN = re.compile(r"`([^`\n]+)`")
"""Code within a line of a document."""

# Splits a page into the words of its headings and what stands below each; a comment in a block is not one.
_HEADING = re.compile(r"^#{1,6} (.+)\n(?=\n)", re.MULTILINE)
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Snippet(NamedTuple):
    """A text to copy.

    Attributes:
        where: its file, with the line of a document's block.
        language: what it is written in.
        text: the text.
    """

    where: str
    language: str
    text: str


def snippets(*languages: str) -> list[Snippet]:
    """Return the code blocks of these languages in all documents."""
    found = []
    for path in markdown_files():
        text = texts()[path]
        for block in _BLOCK.finditer(text):
            if block[1] in languages:
                line = text.count("\n", 0, block.start()) + 1
                found.append(Snippet(f"{path}:{line}", block[1], block[2]))
    return found


def block(page: str, heading: str, starting: str) -> str:
    """Return the one code block below a heading of a page that has a line beginning with these words.

    Args:
        page: the document, from the root of the checkout.
        heading: the words of the heading, which ends at the next one of any level.
        starting: how the line begins.

    Raises:
        LookupError: there is none, or more than one.
    """
    parts = _HEADING.split(texts()[Path(page)])
    below = [
        found[2]
        for title, content in zip(parts[1::2], parts[2::2], strict=True)
        if title == heading
        for found in _BLOCK.finditer(content)
        if f"\n{starting}" in f"\n{found[2]}"
    ]
    if len(below) != 1:
        raise LookupError(f"{page}, {heading}: {len(below)} blocks have a line that begins with {starting!r}, not 1")
    return below[0]


def commands(text: str) -> list[str]:
    """Return the commands of a block, each with the lines that it goes on with."""
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def adapted(text: str, changes: Mapping[str, str]) -> str:
    """Return a text with words replaced.

    Raises:
        LookupError: it does not have one of them any more.
    """
    if missing := [words for words in changes if words not in text]:
        raise LookupError(f"{missing[0]!r} is not in: {text}")
    for words, instead in changes.items():
        text = text.replace(words, instead)
    return text


def examples() -> list[Snippet]:
    """Return the example manifests."""
    return [Snippet(str(path), "yaml", texts()[path]) for path in yaml_files() if path.parts[0] == "examples"]


@cache
def trainjobs() -> dict[str, dict[str, Any]]:
    """Return every TrainJob among them, by where it is; a file or block has one at most."""
    return {
        snippet.where: document
        for snippet in [*snippets("yaml"), *examples()]
        for document in yaml.safe_load_all(snippet.text)
        if isinstance(document, dict) and document.get("kind") == "TrainJob"
    }
