"""Reads a chart's CHANGELOG.md: a section for each version, in it a heading for each kind of change."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from release.errors import DATA, ReleaseError

KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")
"""What Artifact Hub's `artifacthub.io/changes` knows, and keepachangelog.com's headings."""

_VERSION = re.compile(r"^## (\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?)$", re.MULTILINE)
_KIND = re.compile(r"^### (\w+)$", re.MULTILINE)
_ITEM = re.compile(r"^- (.+(?:\n  .+)*)", re.MULTILINE)


@dataclass(frozen=True)
class Change:
    """One line of a changelog."""

    kind: str
    description: str


@dataclass(frozen=True)
class Section:
    """What a changelog says of one version."""

    version: str
    text: str
    changes: tuple[Change, ...]


def read(chart: Path) -> list[Section]:
    """Return the sections of a chart's CHANGELOG.md.

    Raises:
        ReleaseError: it is missing, has no section, or one that Artifact Hub could not show.
    """
    path = chart / "CHANGELOG.md"
    found = sections(path.read_text(encoding="utf-8")) if path.is_file() else []
    if not found:
        raise ReleaseError(DATA, f"{chart.name}/CHANGELOG.md: no '## VERSION' with '### Added' and '- What.' below it")
    return found


def sections(text: str) -> list[Section]:
    """Return the sections of a changelog, newest first as they stand there.

    Raises:
        ReleaseError: a heading is not one of `KINDS`, or a version has no change.
    """
    parts = _VERSION.split(text)
    return [_section(version, body) for version, body in zip(parts[1::2], parts[2::2], strict=True)]


def _section(version: str, body: str) -> Section:
    parts = _KIND.split(body)
    changes = []
    for heading, items in zip(parts[1::2], parts[2::2], strict=True):
        if heading.lower() not in KINDS:
            raise ReleaseError(
                DATA, f"changelog of {version}: no heading {heading!r}, but: {', '.join(map(str.capitalize, KINDS))}"
            )
        changes += [Change(heading.lower(), re.sub(r"\s+", " ", item)) for item in _ITEM.findall(items)]
    if not changes:
        raise ReleaseError(DATA, f"changelog of {version}: no change: write '### Added' and below it '- What.'")
    return Section(version, body.strip(), tuple(changes))
