"""What users read is in the words of docs/STYLE.md: messages, help, notes, values, templates and pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lint.files import python_files, report, texts

# Each pattern with what to write instead. A space in a pattern is any white space.
RULES = {
    r"(?<!there )\b(?:is|are|was|were|been) (?:no|none)\b(?!-| longer\b| more\b)": "is not a …, or: has no …",
    r"\b(?:has|have) not(?= (?:a|an|the|any)\b|[.,;:)|]| ?$)": "has no …, or: lacks …",
    r"\b(?:may|can|must) be none\b": "name what is missing",
    r"\bnobody\b": "name who: no pod, no other user, not known",
    r"\btakes? no\b(?! longer\b| more\b)": "cannot …, needs no …, or: ignores …",
    r"\bnothing is to\b": "nothing to …",
    r"\bwhich there (?:is|are) not\b": "…, which does not exist",
    r"\banother one's\b": "another …, with its noun",
    r"\bis there and\b": "exists, and …",
    r"\bnot let (?:it|them) (?:go|start)\b": "blocks …, or: has not admitted …",
}
# Its pairs show what not to write.
EXEMPT = {Path("docs/STYLE.md")}
# Python whose docstrings users see, as help of a command or in a notebook.
SHOWN = ("runner/src/stoker/commands", "runner/src/stoker/lab")
# What users read beside Markdown and templates, by room and the ends of names.
READ = {
    "charts": (".gotmpl", "values.yaml", ".schema.json"),
    "runtimes": (".yaml",),
    "examples": (".ipynb", ".yaml"),
}
# Comments and code of templates.
UNSEEN = re.compile(r"\{\{-? ?/\*.*?\*/ ?-?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)
MARGIN = re.compile(r"\n[ \t]*(?:#+ ?(?:-- )?|> )?[ \t]*")


def found_in(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the position of each wording that a rule is about, the wording, and what to write instead."""
    for pattern, instead in RULES.items():
        spaced = pattern.replace(" ", r"\s")
        for match in re.finditer(spaced, text, re.IGNORECASE):
            if "None" in match.group():  # Python's
                continue
            yield match.start(), " ".join(match.group().split()), instead


def strings(tree: ast.Module, *, docstrings: bool) -> list[tuple[int, str]]:
    """Return each text in Python code with its line, an f-string as one, with … for what is filled in."""
    found: list[tuple[int, str]] = []
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            found.append((node.lineno, "".join(str(part) for part in parts)))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and not docstrings:
            skipped.add(id(node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            found.append((node.lineno, node.value))
    return sorted(found)


def is_read(path: Path) -> bool:
    """Return whether users read a file, or what is rendered from it."""
    return "templates" in path.parts or path.name.endswith((".md", *READ.get(path.parts[0], ())))


def read_by_users() -> Iterator[tuple[Path, int, str]]:
    """Yield each text that users read, with its file and first line. A margin, such as a comment's, is taken off."""
    for path in python_files():
        if "tests" not in path.parts and path.name != "conftest.py":
            shown = path.as_posix().startswith(SHOWN)
            for number, text in strings(ast.parse(texts()[path]), docstrings=shown):
                yield path, number, MARGIN.sub("\n", text)
    for path, text in texts().items():
        if is_read(path) and path not in EXEMPT:
            seen = UNSEEN.sub(lambda unseen: "\n" * unseen.group().count("\n"), text)
            yield path, 1, MARGIN.sub("\n", seen)


def test_what_users_read_is_in_plain_words() -> None:
    report(
        [
            f"{path}:{first + text.count(chr(10), 0, position)}: {wording!r}: write {instead}"
            for path, first, text in read_by_users()
            for position, wording, instead in found_in(text)
        ],
        "docs/STYLE.md says how we write.",
    )


@pytest.mark.parametrize(
    ("wording", "text"),
    [
        ("is no", "--config vllm.yaml is no configuration of vLLM"),
        ("are none", "samples are none for long"),
        ("are no", "versions that hardly differ are\nno fault"),
        ("has not", "lomo_optim, which this image has not: leave it out"),
        ("has not", "Stoker's image has not, see below"),
        ("may be none", "Samples may be none, so each sampler answers"),
        ("Nobody", "Nobody else may"),
        ("take no", "the samplers take no turns"),
        ("nothing is to", "nothing is to be done: add --push URI"),
        ("which there is not", "names the environment 'yard', which there is not, for row 5"),
        ("another one's", "--namespace shows another one's"),
        ("is there and", "TrainJob a is there and is no session"),
        ("not let it start", "queue a has not let it start"),
    ],
)
def test_an_awkward_wording_is_found(wording: str, text: str) -> None:
    assert wording in [found for _, found, _ in found_in(text)]


@pytest.mark.parametrize(
    "text",
    [
        "there is no cluster here, and there\nare none elsewhere",
        "TorchTune is no longer developed",
        "vLLM has not started in 60 s",
        "the image has no pip",
        "it takes no longer than a minute",
        "if rows is None:",
        "the second call is no-op",
    ],
)
def test_plain_words_are_left_alone(text: str) -> None:
    assert list(found_in(text)) == []


def test_texts_in_python_are_read_as_users_see_them() -> None:
    tree = ast.parse('"""Doc."""\nsay(f"{name} is "\n    f"no name")\nhelp = "Text."\n')
    assert strings(tree, docstrings=False) == [(2, "… is no name"), (4, "Text.")]
    assert [text for _, text in strings(tree, docstrings=True)] == ["Doc.", "… is no name", "Text."]
