"""Charts as packages: made from a lock, pushed, and compared with one another."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import tempfile
from pathlib import Path

import yaml
from images.builder.catalogue import LOCK

from release import artifacthub, commit, tools
from release.artifacts import Artifact, Chart, locked_images
from release.errors import DATA, ReleaseError

LOCK_IN_CHART = Path("files", "images.lock.yaml")


def package(chart: Chart, folder: Path, lock: Path = LOCK) -> Path:
    """Package a chart into `folder` and return the archive.

    Args:
        chart: the chart.
        folder: where the archive goes.
        lock: the lock it gets.

    Raises:
        ReleaseError: Helm refused.
    """
    with tempfile.TemporaryDirectory() as temporary:
        staged = stage(chart, Path(temporary), lock)
        tools.run("helm", "package", staged, "--destination", folder)
    archive = folder / f"{chart.name}-{chart.version}.tgz"
    seconds = int(commit.seconds())
    os.utime(archive, (seconds, seconds))  # Helm pushes it with this time: the same commit gives the same digest
    return archive


def stage(chart: Chart, folder: Path, lock: Path = LOCK) -> Path:
    """Return a copy of a chart in `folder` that has a lock of its own, its links replaced by what they point to."""
    staged = Path(shutil.copytree(chart.folder, folder / chart.name))
    if (staged / LOCK_IN_CHART).exists():
        shutil.copyfile(lock, staged / LOCK_IN_CHART)
    description = staged / "Chart.yaml"
    text = description.read_text(encoding="utf-8")
    description.write_text(artifacthub.with_images(text, artifacthub.image_names(text), lock), encoding="utf-8")
    seconds = int(commit.seconds())
    for path in staged.rglob("*"):
        os.utime(path, (seconds, seconds))  # the archive keeps it: the same commit gives the same bytes
    return staged


def check_digests(chart: Chart, lock: Path = LOCK) -> None:
    """Refuse to publish a chart with images that are not.

    Raises:
        ReleaseError: the lock lacks the digest of an image that the chart lists.
    """
    names = artifacthub.listed_images(chart)
    unknown = [image.reference for image in locked_images(lock) if image.name in names and image.digest is None]
    if unknown:
        raise ReleaseError(
            DATA,
            f"{chart.name} names images that are not published: {', '.join(unknown)}. "
            "Push them first (make release-images) and have their digests in the lock (make release-digests)",
        )


def push(archive: Path, registry: str, plain_http: bool = False) -> Artifact:
    """Push a packaged chart to `REGISTRY/charts` and return it with its digest.

    Raises:
        ReleaseError: Helm failed, or did not say which digest it pushed.
    """
    options = ["--plain-http"] if plain_http else []
    said = tools.run("helm", "push", archive, f"oci://{registry}/charts", *options, with_stderr=True)
    digest = re.search(r"^Digest: (sha256:[0-9a-f]{64})$", said, re.MULTILINE)
    if digest is None:
        raise ReleaseError(DATA, f"helm push did not say which digest it pushed:\n{said}")
    facts = yaml.safe_load(content(archive)["Chart.yaml"])
    return Artifact(f"{registry}/charts/{facts['name']}", facts["version"], digest[1])


def publish(
    chart: Chart, registry: str, lock: Path = LOCK, plain_http: bool = False, folder: Path | None = None
) -> Artifact:
    """Package a chart with a lock, push it, and return it with its digest.

    Args:
        chart: the chart.
        registry: where it goes, below `charts`.
        lock: the lock it gets.
        plain_http: the registry speaks HTTP.
        folder: where the package is kept; None keeps none.

    Raises:
        ReleaseError: Helm failed.
    """
    with tempfile.TemporaryDirectory() as temporary:
        archive = package(chart, folder or Path(temporary), lock)
        return push(archive, registry, plain_http)


def content(archive: Path) -> dict[str, bytes]:
    """Return the content of a packaged chart's files by their path in the chart."""
    with tarfile.open(archive) as opened:
        return {
            member.name.partition("/")[2]: file.read()
            for member in opened.getmembers()
            if member.isreg() and (file := opened.extractfile(member))
        }
