"""The images that rendered objects name, wherever in them a pod stands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from images.builder.catalogue import variants

_LISTS = ("containers", "initContainers", "ephemeralContainers")


def images(objects: Iterable[Any]) -> set[str]:
    """Return the image of every container and image volume in objects of any kind."""
    return {image for thing in objects for image in _images(thing)}


def names_in_lock(found: Iterable[str]) -> set[str]:
    """Return the names that the lock has for those of these images that are in it."""
    known = {f"{variant.registry}/{variant.image}": variant.image for variant in variants()}
    repositories = {image.partition("@")[0].rpartition(":")[0] for image in found}
    return {known[repository] for repository in repositories if repository in known}


def _images(thing: Any) -> Iterator[str]:
    if isinstance(thing, list):
        for item in thing:
            yield from _images(item)
    elif isinstance(thing, dict):
        for key, value in thing.items():
            if key in _LISTS and isinstance(value, list):
                yield from (container["image"] for container in value if "image" in container)
            if key == "volumes" and isinstance(value, list):
                yield from (volume["image"]["reference"] for volume in value if "image" in volume)
            yield from _images(value)
