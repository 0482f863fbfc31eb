"""Names: classes of the runner are unique, modules say what they hold, and what tests share is no test module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from lint.files import python_files, report, texts
from lint.source import SOURCE, source_files

# A reader who sees one of these cannot tell what is in it.
VAGUE = {"sense", "shape", "contents", "surroundings", "documents", "unset"}


def classes() -> Iterator[tuple[str, str]]:
    """Yield each class of the runner, also private and nested ones: its name, and where it is."""
    for path in source_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield node.name, f"{path.relative_to(SOURCE)}:{node.lineno}"


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = {}
    for name, place in classes():
        places.setdefault(name, []).append(place)
    assert len(places) > 300, "the classes are not found"
    report(
        [f"{name}: {', '.join(found)}" for name, found in places.items() if len(found) > 1],
        "Name each by what it is: LogSource, ResultFolder. A name that users import stays; the other one changes.",
    )


def test_no_module_has_a_vague_name() -> None:
    report(
        [
            str(path.relative_to(SOURCE))
            for path in source_files()
            if {path.stem, path.stem.removesuffix("s"), path.parent.name} & VAGUE
        ],
        "Name the module by what it holds.",
    )


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the modules that a Python file imports, also inside functions: line, dotted name.

    Of `from a import b`, both `a` and `a.b` count, because `b` may be a module.
    """
    for node in ast.walk(ast.parse(texts()[path])):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield node.lineno, module
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def test_no_file_imports_a_module_of_tests() -> None:
    tests = {path.stem for path in python_files() if path.name.startswith("test_")}
    assert "test_names" in tests
    report(
        sorted(
            {
                f"{path}:{line}: {part}"
                for path in python_files()
                for line, name in imported_modules(path)
                for part in name.split(".")
                if part in tests
            }
        ),
        "Move what two files share into a module of its own beside them, which does not begin with test_.",
    )
