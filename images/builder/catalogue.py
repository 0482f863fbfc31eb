"""Reads `images.lock.yaml`, the only place where an image's name, version and digest are written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml
from images.builder import ROOT

LOCK = ROOT / "images" / "images.lock.yaml"


ANY = "any"
"""The one variant of an image that needs no accelerator."""


@dataclass(frozen=True)
class Variant:
    """One image for one accelerator."""

    registry: str
    image: str
    version: str
    accelerator: str
    tag: str
    digest: str | None

    @property
    def target(self) -> str:
        """Name of the build target, such as `trl-cpu`; an image with one variant is a target of its own name."""
        return self.image if self.accelerator == ANY else f"{self.image}-{self.accelerator}"

    @property
    def folder(self) -> Path:
        """The folder that it is built from: one of its own, where its packages differ from those of other variants."""
        own = ROOT / "images" / self.target
        return own if own.is_dir() else ROOT / "images" / self.image

    @property
    def needs_docker(self) -> bool:
        """Whether its Dockerfile is one of its own, which begins with somebody else's image: those are not pulled."""
        return (self.folder / f"Dockerfile.{self.accelerator}").exists()

    @property
    def reference(self) -> str:
        """Where the released image is pushed to and pulled from, by tag."""
        return f"{self.registry}/{self.image}:{self.tag}"


def platforms(path: Path = LOCK) -> list[str]:
    """Return the platforms that the released images of a lock are built for, such as `linux/amd64`."""
    found: list[str] = yaml.safe_load(path.read_text(encoding="utf-8"))["platforms"]
    return found


def variants(path: Path = LOCK) -> list[Variant]:
    """Return every variant of every image of a lock.

    Raises:
        KeyError: the file lacks a key that each image needs.
    """
    lock = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [
        Variant(lock["registry"], name, image["version"], accelerator, variant["tag"], variant["digest"])
        for name, image in lock["images"].items()
        for accelerator, variant in image["variants"].items()
    ]
