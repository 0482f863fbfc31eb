"""What a release consists of: every variant of every image in the lock, and every chart, as OCI references."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from images.builder.catalogue import ANY, LOCK, variants

from release import ROOT
from release.errors import DATA, ReleaseError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PYTHON = "python/stoker"
"""Where the Python package lies below the registry."""

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_REFERENCE = re.compile(rf"(?P<repository>[^\s@]+?):(?P<tag>[\w.-]+)(?:@(?P<digest>{DIGEST.pattern}))?")


@dataclass(frozen=True)
class Artifact:
    """An image or a chart in a registry.

    Attributes:
        repository: its name with the registry, without tag.
        tag: its tag.
        digest: its digest; None while it is not known.
    """

    repository: str
    tag: str
    digest: str | None = None

    @property
    def reference(self) -> str:
        """Its full name: by tag, and by digest where that is known."""
        return f"{self.repository}:{self.tag}" + (f"@{self.digest}" if self.digest else "")

    @property
    def name(self) -> str:
        """The last part of its repository."""
        return self.repository.rpartition("/")[2]

    @property
    def is_image(self) -> bool:
        """Whether it is an image, and neither a chart nor the Python package."""
        return not self.repository.endswith((f"/charts/{self.name}", f"/{PYTHON}"))

    def below(self, prefix: str) -> Artifact:
        """Return the same with another registry, as `global.imageRegistry` of the charts moves it: the path stays.

        Args:
            prefix: a registry's host, with a path if wanted, such as `registry.example.com/mirror`.
        """
        return replace(self, repository=f"{prefix.rstrip('/')}/{self.repository.partition('/')[2]}")


@dataclass(frozen=True)
class Chart:
    """A Helm chart of this repository."""

    folder: Path
    name: str
    version: str

    @property
    def tag(self) -> str:
        """The Git tag that publishes it."""
        return f"{self.name}-{self.version}"

    def artifact(self, registry: str) -> Artifact:
        """Return the chart as it lies below `REGISTRY/charts`."""
        return Artifact(f"{registry}/charts/{self.name}", self.version)


def read_chart(folder: Path) -> Chart:
    """Return the chart in a folder."""
    facts = yaml.safe_load((folder / "Chart.yaml").read_text(encoding="utf-8"))
    return Chart(folder, facts["name"], facts["version"])


def charts(root: Path = ROOT) -> list[Chart]:
    """Return the charts of a checkout by name; a library is not published, it lies in the packages of the others."""
    found = sorted((root / "charts").glob("*/Chart.yaml"))
    return [
        read_chart(path.parent)
        for path in found
        if yaml.safe_load(path.read_text(encoding="utf-8")).get("type") != "library"
    ]


def chart(name: str) -> Chart:
    """Return the chart of that name, or of that tag (NAME-VERSION), which must be of the chart's version.

    Raises:
        ReleaseError: there is none.
    """
    for found in charts():
        if name in (found.name, found.tag):
            return found
    known = ", ".join(found.tag for found in charts())
    raise ReleaseError(DATA, f"there is no chart {name!r} in this checkout, but: {known}")


def locked_images(lock: Path = LOCK, accelerators: Iterable[str] = ()) -> list[Artifact]:
    """Return every image variant of a lock.

    Args:
        lock: the file.
        accelerators: only variants for these, and those that need none; empty means all.

    Raises:
        ReleaseError: the lock knows no such accelerator.
    """
    found = variants(lock)
    wanted = set(accelerators)
    if unknown := wanted - {variant.accelerator for variant in found}:
        known = ", ".join(sorted({variant.accelerator for variant in found}))
        raise ReleaseError(DATA, f"no image has a variant {sorted(unknown)[0]!r}; {lock.name} has: {known}")
    return [
        Artifact(f"{variant.registry}/{variant.image}", variant.tag, variant.digest)
        for variant in found
        if not wanted or variant.accelerator in wanted or variant.accelerator == ANY
    ]


def registry(lock: Path = LOCK) -> str:
    """Return where released images and charts lie, such as `ghcr.io/stoker-dev`."""
    return variants(lock)[0].registry


def read_references(text: str) -> list[Artifact]:
    """Return the artifacts of a list with one reference on each line.

    Raises:
        ReleaseError: a line is not NAME:TAG or NAME:TAG@DIGEST.
    """
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        match = _REFERENCE.fullmatch(line)
        if match is None:
            raise ReleaseError(DATA, f"{line!r} is not NAME:TAG or NAME:TAG@sha256:…")
        found.append(Artifact(match["repository"], match["tag"], match["digest"]))
    return found


def references(artifacts: Sequence[Artifact]) -> str:
    """Return the list that `read_references` reads."""
    return "".join(f"{artifact.reference}\n" for artifact in artifacts)
