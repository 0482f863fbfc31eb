"""What the images are built for and which packages they have, as their locks say (`make generate-images`)."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from typing import Any


def packages_of(image: str) -> frozenset[str] | None:
    """Return the packages of an image, by the names of their distributions; None for an image that is not ours.

    An image in a mirror counts as ours: a mirror keeps the path behind the registry's host, and the tag.

    Args:
        image: the reference, such as `ghcr.io/stoker-dev/trl:0.1.0-cpu`.
    """
    known = _contents()
    _, _, below_host = str(known["registry"]).partition("/")
    path, _, name = image.partition("@")[0].rpartition("/")
    if path != below_host and not path.endswith(f"/{below_host}"):
        return None
    held = known["images"].get(name)
    return None if held is None else frozenset(held)


def architecture_of(image: str) -> str:
    """Return the processor that an image needs; empty if it is not ours, or ours are for several.

    Args:
        image: the reference.
    """
    platforms: list[str] = _contents()["platforms"]
    return platforms[0].rpartition("/")[2] if len(platforms) == 1 and packages_of(image) is not None else ""


def image_of(name: str, variant: str = "", registry: str = "") -> str:
    """Return the reference of one of our images.

    Args:
        name: its name, such as `trl`.
        variant: what its tag ends with, such as `cuda`.
        registry: a mirror, which replaces the registry's host, as `global.imageRegistry` of the charts does.
    """
    known = _contents()
    tags = (tag for tag in known["images"] if tag.partition(":")[0] == name and tag.endswith(variant))
    host, _, path = str(known["registry"]).partition("/")
    return f"{registry.rstrip('/') or host}/{path}/{next(tags)}"


def has_package(packages: frozenset[str], name: str) -> bool:
    """Return whether a package that Python imports by a name is among the distributions of an image."""
    return re.sub(r"[-_.]+", "-", name).lower() in packages


@cache
def _contents() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("images.json").read_text(encoding="utf-8")
    contents: dict[str, Any] = json.loads(text)
    return contents
