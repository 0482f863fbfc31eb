"""The annotations of Chart.yaml that Artifact Hub shows and that are made from elsewhere: images and changes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from images.builder.catalogue import LOCK, variants

from release import ROOT, changelog
from release.artifacts import Artifact, Chart, read_chart
from release.errors import DATA, ReleaseError

if TYPE_CHECKING:
    from collections.abc import Collection

SCREENSHOTS = {
    "report.png": "The report that every run ends with",
    "comparison.png": "Two runs compared",
    "board.png": "The runs of a namespace at a glance",
}
"""The pictures of docs/images that Artifact Hub shows, with their titles."""

_RAW = "https://raw.githubusercontent.com/stoker-dev/stoker"
_PICTURES = "docs/images"
_INDENT = "    "
_WIDTH = 100


def image_names(chart_yaml: str) -> set[str]:
    """Return the names of the images that a Chart.yaml lists, as the lock has them."""
    listed = yaml.safe_load(yaml.safe_load(chart_yaml)["annotations"]["artifacthub.io/images"])
    return {re.sub(r"[:@].*", "", item["image"].rpartition("/")[2]) for item in listed}


def listed_images(chart: Chart) -> set[str]:
    """Return the names of the images that a chart lists."""
    return image_names((chart.folder / "Chart.yaml").read_text(encoding="utf-8"))


def with_images(chart_yaml: str, names: Collection[str], lock: Path = LOCK) -> str:
    """Return the text of a Chart.yaml that lists every variant of these images, by digest where it is known."""
    listed = [
        {
            "name": variant.target,
            "image": Artifact(f"{variant.registry}/{variant.image}", variant.tag, variant.digest).reference,
        }
        for variant in variants(lock)
        if variant.image in names
    ]
    return _replaced(chart_yaml, "images", listed)


def with_changes(chart_yaml: str, chart: Path) -> str:
    """Return the text of a Chart.yaml with the changes that CHANGELOG.md has of its version.

    Raises:
        ReleaseError: the changelog's newest section is not about this version.
    """
    version = read_chart(chart).version
    newest, *_ = changelog.read(chart)
    if newest.version != version:
        raise ReleaseError(
            DATA,
            f"{chart.name}/CHANGELOG.md begins with {newest.version}, Chart.yaml has {version}: add '## {version}'",
        )
    listed = [{"kind": change.kind, "description": change.description} for change in newest.changes]
    return _replaced(chart_yaml, "changes", listed)


def with_pictures(chart_yaml: str, chart: Chart, root: Path = ROOT) -> str:
    """Return the text of a Chart.yaml that names the icon and the screenshots of the documents, as of its own tag.

    Raises:
        ReleaseError: it has no line for them.
    """
    raw = f"{_RAW}/{chart.tag}/{_PICTURES}"
    listed = [
        {"title": title, "url": f"{raw}/{name}"}
        for name, title in SCREENSHOTS.items()
        if (root / _PICTURES / name).is_file()
    ]
    text, count = re.subn(r"^icon: .*$", f"icon: {raw}/icon.svg", chart_yaml, flags=re.MULTILINE)
    if count != 1:
        raise ReleaseError(DATA, f"{chart.name}/Chart.yaml needs one line 'icon: URL'")
    return _replaced(text, "screenshots", listed)


def _replaced(chart_yaml: str, name: str, value: list[dict[str, Any]]) -> str:
    """Return a Chart.yaml with another value of one annotation, whose lines are the only ones that change."""
    dumped = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=_WIDTH)
    block = "".join(f"{_INDENT}{line}\n" for line in dumped.splitlines())
    pattern = rf"^(  artifacthub\.io/{name}: \|\n)(?:{_INDENT}.*\n)*"
    text, count = re.subn(pattern, lambda match: match[1] + block, chart_yaml, flags=re.MULTILINE)
    if count != 1:
        raise ReleaseError(DATA, f"Chart.yaml needs one line 'artifacthub.io/{name}: |' below annotations")
    return text
