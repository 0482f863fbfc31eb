"""What there is to copy: the code blocks of the documents, and the examples' manifests."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

import yaml

from lint.files import markdown_files, texts, yaml_files

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
