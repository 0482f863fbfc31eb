"""The documentation site: every Markdown file of the repository and the docstrings of the public names, by MkDocs.

The files stay as GitHub shows them. A copy of them is built, in which links to other files go to the repository.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from release import ROOT, diagrams
from release.artifacts import Chart
from release.errors import DATA, UNAVAILABLE, ReleaseError
from release.policy import order

SETTINGS = ROOT / "release" / "mkdocs.yaml"
HOME = "https://github.com/stoker-dev/stoker"
INDEX = PurePosixPath("docs/README.md")
FACES = {
    "stoker.sdk": "Submit from Python",
    "stoker.backends": "Configs of runs",
    "stoker.lab": "Train and serve in one process",
    "stoker.plugin": "Add a training framework",
}
"""The public names that have a page made from docstrings, with its title."""

DIAGRAMS = PurePosixPath("assets") / diagrams.NAME

_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_BLOCK = re.compile(r"(^ *```.*?^ *```)", re.MULTILINE | re.DOTALL)
_ALERT = re.compile(r"^> \[!(\w+)\]$", re.MULTILINE)
_PICTURE_FROM_ELSEWHERE = re.compile(r"!\[([^\]]*)\]\(https?:[^)]+\)")
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|#")
_TAG = re.compile(r"(?P<chart>.+?)-(?P<version>\d+\.\d+\.\d+.*)")


def page_of(path: PurePosixPath) -> PurePosixPath:
    """Return where a Markdown file of the repository lies in the site: documents at the top, others by their path."""
    if path == PurePosixPath("README.md"):
        return PurePosixPath("quickstart.md")
    return path.relative_to("docs") if path.is_relative_to("docs") else path


def sources(root: Path = ROOT) -> list[PurePosixPath]:
    """Return the Markdown files of the checkout, and the pictures of the documents."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md", "docs/images"],
        cwd=root, check=True, stdout=subprocess.PIPE, text=True,
    ).stdout  # fmt: skip
    return sorted(PurePosixPath(name) for name in listed.split("\0") if name and (root / name).is_file())


def page(text: str, path: PurePosixPath, pages: Collection[PurePosixPath], ref: str, root: Path = ROOT) -> str:
    """Return the text of a page: links as they are in the site, and notes that MkDocs knows.

    Args:
        text: the Markdown file.
        path: its path in the repository.
        pages: what the site has, as paths in the repository.
        ref: the commit or tag of the repository that other links go to.
        root: the checkout.
    """
    own = page_of(path).parent

    def moved(match: re.Match[str]) -> str:
        begin, link, end = match.groups()
        if _ELSEWHERE.match(link):
            return match[0]
        name, mark, anchor = link.partition("#")
        target = PurePosixPath(os.path.normpath(path.parent / name))
        if target in pages:
            relative = os.path.relpath(page_of(target), own)
            return f"{begin}{relative}{mark}{anchor}{end}"
        kind = "tree" if (root / target).is_dir() else "blob"
        return f"{begin}{HOME}/{kind}/{ref}/{target}{mark}{anchor}{end}"

    parts = _BLOCK.split(text)  # code blocks are the odd ones, and stay as they are
    parts[::2] = [_LINK.sub(moved, _without_loads(part)) for part in parts[::2]]
    if any(part.lstrip().startswith("```mermaid") for part in parts[1::2]):
        # The theme uses it where it finds it, and fetches it from elsewhere where it does not.
        parts.append(f'\n<script src="{os.path.relpath(DIAGRAMS, page_of(path).with_suffix(""))}"></script>\n')
    return "".join(parts)


def _without_loads(text: str) -> str:
    """Return text without what needs GitHub or a network to be shown: its alerts, and pictures of other hosts."""
    text = _ALERT.sub(lambda found: f"> **{found[1].capitalize()}.**", text)
    return _PICTURE_FROM_ELSEWHERE.sub(r"\1", text)


def navigation(index: str) -> list[dict[str, Any]]:
    """Return MkDocs' navigation: the tables of docs/README.md, whose headings are the kinds of pages.

    Args:
        index: the text of docs/README.md.
    """
    top: list[dict[str, Any]] = [{"Documentation": str(page_of(INDEX))}, {"Quickstart": "quickstart.md"}]
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title = section.splitlines()[0].partition(":")[0]
        entries: list[dict[str, Any]] = []
        groups = re.split(r"^(For [\w ]+):$", section, flags=re.MULTILINE)
        entries += _entries(groups[0])
        entries += [{name: _entries(rows)} for name, rows in zip(groups[1::2], groups[2::2], strict=True)]
        if title == "Reference":
            entries.append({"Python": [{name: f"api/{face}.md"} for face, name in FACES.items()]})
        top.append({title: entries})
    return top


def _entries(rows: str) -> list[dict[str, Any]]:
    found = []
    for row in re.findall(r"^\| (\[.+?)\s\| ", rows, re.MULTILINE):
        for title, link in re.findall(r"\[([^\]]+)\]\(([^)#]+)\)", row):
            target = PurePosixPath(os.path.normpath(INDEX.parent / link))
            found.append({title[0].upper() + title[1:]: str(page_of(target))})
    return found


def api_page(face: str) -> str:
    """Return the page of a public name: each thing that it offers, by its docstring."""
    module = importlib.import_module(face)
    words = [f"# {FACES[face]}: `{face}`", (module.__doc__ or "").strip()]
    words += [f"::: {face}.{name}" for name in sorted(module.__all__)]
    return "\n\n".join(words) + "\n"


def stage(folder: Path, ref: str, root: Path = ROOT) -> None:
    """Write the pages into `folder`, as MkDocs reads them."""
    pages = sources(root)
    for path in pages:
        target = folder / page_of(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            text = (root / path).read_text(encoding="utf-8")
            target.write_text(page(text, path, pages, ref, root), encoding="utf-8")
        else:
            shutil.copyfile(root / path, target)
    (folder / DIAGRAMS).parent.mkdir()
    shutil.copyfile(diagrams.program(), folder / DIAGRAMS)
    (folder / "api").mkdir()
    for face in FACES:
        (folder / "api" / f"{face}.md").write_text(api_page(face), encoding="utf-8")


def build(chart: Chart, out: Path, ref: str = "main", root: Path = ROOT) -> Path:
    """Build the site for a version of a chart, strictly, and return its folder `OUT/CHART-VERSION`.

    Args:
        chart: the chart.
        out: the folder of all versions; its list of versions is written too.
        ref: the commit or tag that links to files go to.
        root: the checkout.

    Raises:
        ReleaseError: MkDocs found a broken link, or a page that no navigation has; or Mermaid cannot be fetched.
    """
    target = out.resolve() / chart.tag
    with tempfile.TemporaryDirectory() as temporary:
        pages = Path(temporary) / "pages"
        pages.mkdir()
        stage(pages, ref, root)
        nav = navigation((root / INDEX).read_text(encoding="utf-8"))
        settings = yaml.safe_dump(
            {
                "INHERIT": str(SETTINGS),
                "docs_dir": str(pages),
                "site_dir": str(target),
                "nav": nav,
                "not_in_nav": "\n".join(_others(pages, nav)),
                "plugins": {"mkdocstrings": {"handlers": {"python": {"paths": [str(root / "runner" / "src")]}}}},
            }
        )
        file = Path(temporary) / "mkdocs.yml"
        file.write_text(settings, encoding="utf-8")
        done = subprocess.run(  # not --quiet: then MkDocs counts no warnings, and nothing is strict
            [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", file],
            check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
    if done.returncode != 0:
        found = [line for line in done.stdout.splitlines() if line.startswith("WARNING")]
        said = "\n".join(found) or done.stdout.rstrip()
        raise ReleaseError(DATA if found else UNAVAILABLE, f"mkdocs build:\n{said}")
    write_versions(out)
    return target


def _others(pages: Path, nav: list[dict[str, Any]]) -> Iterator[str]:
    """Yield pages that others link to, and that no table of docs/README.md lists: all but the documents' own."""
    listed = {*_leaves(nav)}
    for path in sorted(pages.rglob("*.md")):
        name = path.relative_to(pages).as_posix()
        if name not in listed and name.partition("/")[0] not in {"guides", "concepts", "reference"}:
            yield f"/{name}"


def _leaves(nav: list[dict[str, Any]]) -> Iterator[str]:
    for entry in nav:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from _leaves(value)


def write_versions(out: Path) -> None:
    """Write the list of the versions that `out` holds, for the site's menu, and a page that leads to the newest."""
    found = [match for path in out.iterdir() if path.is_dir() and (match := _TAG.fullmatch(path.name))]
    found.sort(key=lambda match: order(match["version"]), reverse=True)
    found.sort(key=lambda match: match["chart"])
    listed = [{"version": tag[0], "title": f"{tag['chart']} {tag['version']}", "aliases": []} for tag in found]
    (out / "versions.json").write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    newest = found[0][0]
    (out / "index.html").write_text(
        '<!doctype html><meta charset="utf-8"><title>Stoker</title>'
        f'<meta http-equiv="refresh" content="0; url={newest}/"><a href="{newest}/">Documentation</a>\n',
        encoding="utf-8",
    )
