"""One name, one thing: no two public classes of the runner share a name, and no module has a name that says nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from lint.files import report
from lint.source import SOURCE, source_files

# A reader who sees one of these cannot tell what is in it.
VAGUE = {"sense", "shape", "contents", "surroundings", "documents", "unset"}


def public_classes() -> Iterator[tuple[str, str]]:
    """Yield each public class of the runner, also those inside functions and classes: its name, and where it is."""
    for path in source_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield node.name, f"{path.relative_to(SOURCE)}:{node.lineno}"


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = {}
    for name, place in public_classes():
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
