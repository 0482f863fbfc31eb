"""Whatever a document says is shown by a test, is: the test it names exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml

from lint.files import lines, markdown_files, report, repository_files, texts

CLAIM = re.compile(r"`([\w./-]+\.(?:py|yaml))::([^`]+)`")
OURS = re.compile(r"\| (\*\*Y\*\*|y|-|n/a) \|([^|]*)\|$")


@cache
def names(path: Path) -> frozenset[str]:
    """Return the names of the tests in a file: functions of pytest's, or what helm-unittest says of each."""
    if path not in repository_files():
        return frozenset()
    if path.suffix == ".py":
        functions = (node for node in ast.parse(texts()[path]).body if isinstance(node, ast.FunctionDef))
        return frozenset(node.name for node in functions if node.name.startswith("test_"))
    return frozenset(str(case["it"]) for case in yaml.safe_load(texts()[path])["tests"])


def claims() -> Iterator[tuple[Path, int, str, str]]:
    """Yield each test that a document names: document, line, file and name."""
    for document in markdown_files():
        for number, line in lines(document):
            for file, name in CLAIM.findall(line):
                yield document, number, file, name


def test_tests_that_documents_name_exist() -> None:
    found = list(claims())
    missing = [
        f"{doc}:{number}: {file} has no test {name!r}"
        for doc, number, file, name in found
        if name not in names(Path(file))
    ]
    assert len(found) > 30
    report(missing, "Name a test as `PATH::NAME`, as it is called there.")


def test_every_mark_of_ours_in_a_comparison_is_shown_by_a_test() -> None:
    document = Path("docs/reference/comparison.md")
    rows = [(number, OURS.search(line)) for number, line in lines(document) if re.match(r"\| (?!feature \|)", line)]
    findings = [
        f"{document}:{number}: {'a mark without a test' if found and found[1] != '-' else 'no row'}"
        for number, found in rows
        if not found or (found[1] in ("**Y**", "y") and not CLAIM.search(found[2]))
    ]
    assert len(rows) > 10
    report(findings, "The last two columns are our mark, and the test that shows it.")
