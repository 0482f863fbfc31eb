"""The runner's source, as the linters of its rooms read it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from lint.files import ROOT

SOURCE = ROOT / "runner" / "src"


def source_files(room: str = "") -> list[Path]:
    """Return the Python files of the runner, or of one of its rooms, sorted."""
    return sorted((SOURCE / "stoker" / room).rglob("*.py"))


def literals(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the strings of a file that are no docstrings, each with its line, also the parts of f-strings."""
    tree = ast.parse(path.read_text())
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, node.value
