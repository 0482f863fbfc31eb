"""Docstrings of the runner name exceptions that exist, also after these were renamed."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pytest

from lint.files import report
from lint.source import SOURCE, source_files

# An entry of a section: `OSError, yaml.YAMLError: it cannot be read.`
_ENTRY = re.compile(r"    ([A-Za-z_][\w.]*(?:(?:, | or )[A-Za-z_][\w.]*)*):")


@dataclass(frozen=True)
class Module:
    """What a module has, also inside functions.

    Attributes:
        names: of its classes, and those that it imports.
        modules: dotted names that may be modules that it imports.
    """

    names: frozenset[str]
    modules: frozenset[str]


def module(tree: ast.Module) -> Module:
    """Return what a module has."""
    names: set[str] = set()
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import):
            names |= {alias.asname or alias.name for alias in node.names}
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
            modules |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return Module(frozenset(names), frozenset(modules))


@cache
def trees() -> dict[str, ast.Module]:
    """Return the runner's modules by their dotted names."""
    found = {}
    for path in source_files():
        dotted = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        found[dotted.removesuffix(".__init__")] = ast.parse(path.read_text())
    return found


def raised(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield what docstrings say is raised: the line of the definition, the name."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            continue
        _, _, section = (ast.get_docstring(node) or "").partition("Raises:\n")
        for line in section.splitlines():
            if line and not line.startswith(" "):  # the next section
                break
            if entry := _ENTRY.match(line):
                yield from ((getattr(node, "lineno", 1), name) for name in re.split(", | or ", entry[1]))


def unknown(known: dict[str, ast.Module]) -> list[str]:
    """Return what docstrings name and neither Python has, nor their module, nor any that it imports, at any depth."""
    modules = {name: module(tree) for name, tree in known.items()}
    found = []
    for name, tree in known.items():
        reached, ahead = set[str](), {name}
        while ahead:
            reached |= ahead
            ahead = {one for here in ahead for one in modules[here].modules if one in modules} - reached
        names = {one for here in reached for one in modules[here].names}
        found += [
            f"{name}:{line}: {error}"
            for line, error in raised(tree)
            if not (hasattr(builtins, error) or error in names or error.rpartition(".")[0] in names)
        ]
    return found


def test_what_docstrings_say_is_raised_exists() -> None:
    assert sum(1 for tree in trees().values() for _ in raised(tree)) > 500, "the sections are not found"
    report(unknown(trees()), "Write the class's name as it is now, and import it if no module below does.")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("OSError", []),
        ("OSError, MineError or far.AwayError", []),
        ("BelowError", []),
        ("GoneError", ["stoker.a:2: GoneError"]),
        ("OSError, GoneError", ["stoker.a:2: GoneError"]),
        ("ElsewhereError", ["stoker.a:2: ElsewhereError"]),  # of a module that this one does not import
    ],
)
def test_a_name_that_nothing_has_is_found(text: str, wrong: list[str]) -> None:
    section = f"Raises:\n        {text}: it: cannot.\n            GoneError: is no entry."
    doc = f'"""Do.\n\n    {section}\n\n    See: also.\n    """'
    known = {
        "stoker.a": f"import far\ndef do():\n    {doc}\n    from stoker.b import b\nclass MineError: ...\n",
        "stoker.b": "from stoker.c import BelowError",
        "stoker.c": "class BelowError: ...",
        "stoker.d": "class ElsewhereError: ...",
    }
    assert unknown({name: ast.parse(source) for name, source in known.items()}) == wrong
