"""What is in an artifact, as the locks say: the packages of an image, the images of a chart."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from images.builder import contents
from images.builder.catalogue import LOCK, Variant, variants
from packaging.requirements import Requirement

from release import ROOT, artifacthub
from release.artifacts import PYTHON, Artifact, chart, locked_images
from release.errors import DATA, ReleaseError

if TYPE_CHECKING:
    from collections.abc import Iterator

_BASE = re.compile(r"^ARG BASE_IMAGE=(?P<name>\S+?):(?P<tag>[\w.-]+)$", re.MULTILINE)
_MODULE = re.compile(r"^(?:require )?\s*(?P<name>[\w./~-]+\.[\w./~-]+) (?P<version>v\S+)", re.MULTILINE)
_PIN = re.compile(r"^\S+?==([^\s;\\]+)")
# Where the version of llama.cpp's converter is written, which an image may hold a part of.
_CONVERTER = ROOT / "runner/src/stoker/results/gguf.py"
_CONVERTER_PIN = re.compile(r'^PACKAGE, VERSION = "(?P<name>[^"]+)", "(?P<version>[^"]+)"$', re.MULTILINE)


@dataclass(frozen=True, order=True)
class Part:
    """A package or an image that an artifact holds or names.

    Attributes:
        kind: `pypi`, `golang`, `docker` or `oci`: the type of its package URL.
        name: its name.
        version: its version, tag or digest; empty if the artifact leaves it open.
    """

    kind: str
    name: str
    version: str


def parts_of(artifact: Artifact, lock: Path = LOCK) -> tuple[list[Part], list[Path]]:
    """Return what is in an artifact, and the files that say so.

    Args:
        artifact: an image, a chart or the Python package, in any registry.
        lock: the lock of images.

    Raises:
        ReleaseError: it is nothing that this checkout builds.
    """
    if artifact.repository.endswith(f"/{PYTHON}"):
        path = ROOT / "runner" / "pyproject.toml"
        return sorted(_needed(path)), [path]
    if artifact.repository.endswith(f"/charts/{artifact.name}"):
        found = chart(f"{artifact.name}-{artifact.tag}")
        names = artifacthub.listed_images(found)
        images = [image for image in locked_images(lock) if image.name in names]
        return sorted(Part("oci", image.name, image.digest or image.tag) for image in images), [lock]
    for variant in variants(LOCK):
        if (variant.image, variant.tag) == (artifact.name, artifact.tag):
            return _of_image(variant)
    raise ReleaseError(DATA, f"{artifact.reference} is not an image, chart or package of this checkout")


def _of_image(variant: Variant) -> tuple[list[Part], list[Path]]:
    folder = variant.folder
    own = folder / f"Dockerfile.{variant.accelerator}"
    recipe = own if own.exists() else folder / "Dockerfile"
    if (modules := folder / "go.mod").exists():
        found = [Part("golang", line["name"], line["version"]) for line in _MODULE.finditer(modules.read_text())]
        return sorted(found), [recipe, modules, folder / "go.sum"]
    base = _BASE.search(recipe.read_text(encoding="utf-8"))
    held = [Part("docker", base["name"].removeprefix("docker.io/"), base["tag"])] if base else []
    if not contents.is_from_locks(variant):
        return held, [recipe]
    locks = contents.locks(folder / "requirements", variant.accelerator)
    if "AS converter" in recipe.read_text(encoding="utf-8"):
        pin = _CONVERTER_PIN.search(_CONVERTER.read_text(encoding="utf-8"))
        held += [Part("pypi", pin["name"], pin["version"])] if pin else []
        locks = [*locks, _CONVERTER]
    for name, text in contents.locked(folder / "requirements", variant.accelerator).items():
        locked = _PIN.match(text)
        held.append(Part("pypi", name, locked[1] if locked else ""))
    return sorted(held), [recipe, *locks]


def _needed(project: Path) -> Iterator[Part]:
    for line in tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]:
        yield Part("pypi", Requirement(line).name, "")
