"""What the Makefile, the README and the other documents say of each other and of the repository is true."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from lint.files import ROOT, lines, markdown_files, report, repository_files, texts
from lint.snippets import CODE_SPAN

MAKE_TARGET = re.compile(r"^([a-z0-9][a-z0-9-]*):(?!=)(.*)$", re.MULTILINE)
MAKE_COMMAND = re.compile(r"(?:^|[\s;&|(\"'])make (?:[A-Z_]+=\S+ )*([a-z][a-z0-9-]*)(?![\w/.])")
CODE_BLOCK = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
PIP_BY_NAME = re.compile(r"pip install (?:\S+ )*['\"]?stoker\b")
# The pages of docs: of the three kinds, and those for contributors beside the list of all.
PAGE = re.compile(r"docs/((guides|concepts|reference)/[\w.-]+|README|STYLE|testing)\.md")
DECISION_PART = re.compile(r"^(?:\*\*|##+ )(\w+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


def make_targets() -> dict[str, str]:
    """Return what follows the colon of each target in the Makefile."""
    return dict(MAKE_TARGET.findall(texts()[Path("Makefile")]))


def code_in(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what a Markdown file shows as code, spans and lines of blocks, with line numbers."""
    block = False
    for number, line in lines(path):
        if line.lstrip().startswith("```"):
            block = not block
        elif block:
            yield number, line
        else:
            for span in CODE_SPAN.findall(line):
                if "::" not in span:  # the name of a test, see test_comparison.py
                    yield number, span


def anchors(path: Path) -> set[str]:
    """Return the anchors GitHub gives the headings of a Markdown file."""
    headings = HEADING.findall(CODE_BLOCK.sub("", texts()[path]))
    words = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", word).replace(" ", "-") for word in words}


def rooms() -> set[str]:
    """Return the top-level folders."""
    return {path.parts[0] for path in repository_files() if len(path.parts) > 1}


def test_make_targets_are_documented() -> None:
    phony = set(re.findall(r"^\.PHONY: (\S+)$", texts()[Path("Makefile")], re.MULTILINE))
    targets = make_targets()
    findings = [f"Makefile: {name} has no '## what it does'" for name, rest in targets.items() if "## " not in rest]
    findings += [f"Makefile: {name} is not .PHONY" for name in targets if name not in phony]
    report(findings, "Write .PHONY: NAME, and then NAME: DEPENDENCIES ## What it does.")


def test_make_commands_exist() -> None:
    targets = make_targets()
    findings = []
    for path in texts():
        if path.suffix != ".md" and path.parts[0] not in {".ci", ".github"}:
            continue
        code = code_in(path) if path.suffix == ".md" else lines(path)
        findings += [
            f"{path}:{number}: make {target}"
            for number, text in code
            for target in MAKE_COMMAND.findall(text)
            if target not in targets
        ]
    report(findings, "The Makefile has no such target: `make help` lists those it has.")


def test_what_pip_installs_of_ours_is_in_the_checkout() -> None:
    """No package index has Stoker: whoever took the name there could put anything onto users' machines."""
    findings = [
        f"{path}:{number}: {text.strip()}"
        for path in texts()
        if path.suffix == ".md" or path.is_relative_to("runner/src")
        for number, text in lines(path)
        if PIP_BY_NAME.search(text)
    ]
    report(findings, "Write pip install ./runner, from a checkout.")


def test_links_resolve() -> None:
    findings = []
    for path in markdown_files():
        for link in LINK.findall(CODE_BLOCK.sub("", texts()[path])):
            if re.match(r"[a-z][a-z0-9+.-]*:", link):
                continue
            name, _, anchor = unquote(link).partition("#")
            target = (ROOT / path.parent / name).resolve() if name else ROOT / path
            if not target.exists():
                findings.append(f"{path}: {link}: no such file")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target.relative_to(ROOT)):
                findings.append(f"{path}: {link}: no such heading")
    report(findings, "Mend the link.")


def test_paths_in_documents_exist() -> None:
    known = rooms()
    findings = []
    for path in markdown_files():
        for number, code in code_in(path):
            for word in code.split():
                name = word.split("::")[0].strip(".,;:()\"'/")
                if "/" not in name or name.split("/")[0] not in known or re.search(r"[<>{}$…=]|[A-Z]{4}", name):
                    continue  # not a path in this repository, or one with a part to fill in
                if not any(any((ROOT / base).glob(name)) for base in ("", path.parent)):
                    findings.append(f"{path}:{number}: {name}")
    report(findings, "There is no such file: name the one that took its place.")


def floors() -> list[set[str]]:
    """Return the rooms of the runner by floor, the highest first, without the public names that no room imports."""
    contracts = tomllib.loads(texts()[Path("pyproject.toml")])["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["containers"] == ["stoker"])
    return [set(layer.split(" | ")) for layer in layers[1:]]


def test_every_room_is_introduced() -> None:
    table = texts()[Path("CONTRIBUTING.md")]
    report(
        [f"CONTRIBUTING.md: no row for {room}/" for room in sorted(rooms()) if f"`{room}/`" not in table],
        "Say in the layout table what lives there and what it may know of.",
    )


def test_the_rooms_of_the_runner_are_introduced_by_floor() -> None:
    section = texts()[Path("CONTRIBUTING.md")].partition("### The rooms of the runner")[2]
    public, *rows = re.findall(r"^\| `(\w+)/` \|", section, re.MULTILINE)
    assert public == "lab"
    for floor in floors():
        found, rows = rows[: len(floor)], rows[len(floor) :]
        assert set(found) == floor, "the table has the rooms as pyproject.toml's import-linter has them, from the top"
    assert not rows


def test_every_page_is_a_guide_a_concept_or_a_reference() -> None:
    pages = [path for path in markdown_files() if path.parts[0] == "docs"]
    report(
        [f"{path}: lies in none of the three folders" for path in pages if not PAGE.fullmatch(path.as_posix())],
        "Move it into docs/guides, docs/concepts or docs/reference. docs/STYLE.md says which is which.",
    )


def test_decisions_have_one_shape() -> None:
    parts = ["Context", "Decision", "Consequences"]
    pages = [path for path in markdown_files() if path.parts[0] == "design" and path.name != "README.md"]
    report(
        [str(path) for path in pages if DECISION_PART.findall(texts()[path]) != parts],
        "Write **Context.**, **Decision.** and **Consequences.**, without further headings.",
    )
