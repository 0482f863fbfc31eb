"""Writes digests into images.lock.yaml and leaves every other character of it as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from release.artifacts import DIGEST, Artifact
from release.errors import DATA, ReleaseError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def pushed_digests(lock: str, pushed: Iterable[Artifact]) -> dict[tuple[str, str], str]:
    """Return the digests of pushed images by the image's and the variant's name in the lock.

    The registry does not matter: a release is tried out in another one than it goes to.

    Args:
        lock: the text of images.lock.yaml.
        pushed: images with their digests.

    Raises:
        ReleaseError: the lock has no such image and tag, or a digest is missing.
    """
    known = {
        (name, variant["tag"]): (name, accelerator)
        for name, image in yaml.safe_load(lock)["images"].items()
        for accelerator, variant in image["variants"].items()
    }
    found = {}
    for image in pushed:
        if (image.name, image.tag) not in known:
            raise ReleaseError(DATA, f"images.lock.yaml has no image {image.name} with the tag {image.tag}")
        if image.digest is None:
            raise ReleaseError(DATA, f"{image.reference} has no digest: only what was pushed has one")
        found[known[image.name, image.tag]] = image.digest
    return found


def expect_registry(lock: str, pushed: Iterable[Artifact]) -> None:
    """Refuse images of a trial: with their digests in the lock, charts would name images that nobody can pull.

    Args:
        lock: the text of images.lock.yaml.
        pushed: images as they were pushed.

    Raises:
        ReleaseError: one lies in another registry than the lock's.
    """
    registry = yaml.safe_load(lock)["registry"]
    for image in pushed:
        if image.repository != f"{registry}/{image.name}":
            raise ReleaseError(
                DATA,
                f"{image.reference} does not lie in {registry}, the registry of images.lock.yaml: push the images "
                "there, or write the digests of a trial into a lock of its own (OVERLAY=FILE)",
            )


def with_digests(lock: str, digests: Mapping[tuple[str, str], str]) -> str:
    """Return the text of a lock with digests in it.

    Args:
        lock: the text of images.lock.yaml.
        digests: by image and variant.

    Raises:
        ReleaseError: a digest is not one, or the lock has another one already: a published version never changes.
    """
    nodes = _digest_nodes(lock)
    spans = []
    for (image, variant), digest in digests.items():
        node = nodes[image, variant]
        if not DIGEST.fullmatch(digest):
            raise ReleaseError(DATA, f"{image}, {variant}: {digest!r} is not a digest (sha256:…)")
        if node.tag.endswith(":null"):
            spans.append((node.start_mark.index, node.end_mark.index, digest))
        elif node.value != digest:
            raise ReleaseError(
                DATA,
                f"{image}, {variant}: images.lock.yaml has {node.value} already and a published version never changes: "
                f"give {image} a new version",
            )
    for start, end, digest in sorted(spans, reverse=True):
        lock = lock[:start] + ("" if end > start else " ") + digest + lock[end:]
    return lock


def overlay(lock: str, digests: Mapping[tuple[str, str], str]) -> str:
    """Return a lock with these variants alone and their digests: what a trial has, which builds not every image.

    Args:
        lock: the text of images.lock.yaml.
        digests: by image and variant.

    Raises:
        ReleaseError: as `with_digests`.
    """
    whole = yaml.safe_load(with_digests(lock, digests))
    images = {}
    for name, image in whole["images"].items():
        built = {variant: facts for variant, facts in image["variants"].items() if (name, variant) in digests}
        if built:
            images[name] = {**image, "variants": built}
    return yaml.safe_dump({**whole, "images": images}, sort_keys=False)


def _digest_nodes(lock: str) -> dict[tuple[str, str], yaml.ScalarNode]:
    """Return where each variant's digest stands in the text."""

    def children(node: yaml.Node) -> dict[str, yaml.Node]:
        return {key.value: value for key, value in node.value}

    root = yaml.compose(lock, yaml.SafeLoader)
    assert root
    found = {}
    for name, image in children(children(root)["images"]).items():
        for accelerator, variant in children(children(image)["variants"]).items():
            digest = children(variant)["digest"]
            assert isinstance(digest, yaml.ScalarNode)
            found[name, accelerator] = digest
    return found
