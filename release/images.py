"""Builds the images that are not published yet, and pushes them."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from images.builder import build_command
from images.builder.catalogue import Variant, platforms, variants

from release import commit, tools
from release.artifacts import Artifact
from release.errors import CONFIG, DATA, ReleaseError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

BUILDERS = ("docker", "buildah")


def unpublished(targets: Collection[str] = ()) -> list[Variant]:
    """Return the variants of images.lock.yaml that have no digest yet.

    Args:
        targets: only these, as docker-bake.hcl names them; empty means all.

    Raises:
        ReleaseError: a target does not exist, or was published: a published version never changes.
    """
    known = {variant.target: variant for variant in variants()}
    for target in targets:
        if target not in known:
            raise ReleaseError(DATA, f"there is no image {target!r}, but: {', '.join(known)}")
        if known[target].digest:
            raise ReleaseError(
                DATA,
                f"{known[target].reference} is published and a published version never changes: "
                f"give {known[target].image} a new version in images.lock.yaml",
            )
    return [variant for name, variant in known.items() if (name in targets if targets else variant.digest is None)]


def push(found: Sequence[Variant], registry: str, builder: str, plain_http: bool = False) -> list[Artifact]:
    """Build images and push them, and return them with their digests.

    Args:
        found: what to build.
        registry: where it goes, without the image's own name.
        builder: `docker` builds with buildx and attaches an SBOM and the provenance of the build; `buildah` builds
            on this machine without Docker, and attaches nothing.
        plain_http: the registry speaks HTTP (buildah only; Docker has settings of its own for that).

    Raises:
        ReleaseError: only Docker builds one of them (78), or a build or a push failed.
    """
    if not found:
        return []
    digests = _bake(found, registry) if builder == "docker" else _without_docker(found, registry, plain_http)
    return [Artifact(f"{registry}/{variant.image}", variant.tag, digests[variant.target]) for variant in found]


def bake_command(found: Sequence[Variant], metadata: Path) -> list[str]:
    """Return what `docker` is given to build and push images with their attestations."""
    files = [f"--file=images/{name}" for name in ("docker-bake.hcl", "docker-bake.json")]
    attestations = ["--sbom=true", "--provenance=mode=max"]
    # As --push, and files in layers get the commit's time too.
    output = "--set=*.output=type=registry,rewrite-timestamp=true"
    return [
        "buildx", "bake", *files, output, *attestations, f"--metadata-file={metadata}",
        *(variant.target for variant in found),
    ]  # fmt: skip


def _bake(found: Sequence[Variant], registry: str) -> dict[str, str]:
    """Build with Docker; the images' times are the commit's, so that building again gives the same layers."""
    environment = {
        "REGISTRY": registry,
        "PLATFORMS": ",".join(platforms()),
        "REVISION": commit.revision(),
        "SOURCE_DATE_EPOCH": commit.seconds(),
    }
    with tempfile.TemporaryDirectory() as folder:
        metadata = Path(folder) / "metadata.json"
        tools.show("docker", *bake_command(found, metadata), env=environment)
        facts = json.loads(metadata.read_text(encoding="utf-8"))
    return {variant.target: facts[variant.target]["containerimage.digest"] for variant in found}


def _without_docker(found: Sequence[Variant], registry: str, plain_http: bool) -> dict[str, str]:
    if refused := [variant.target for variant in found if variant.needs_docker]:
        others = " ".join(variant.target for variant in found if not variant.needs_docker)
        raise ReleaseError(
            CONFIG,
            f"only Docker builds {', '.join(refused)}: use the builder docker"
            + (f", or name the others: {others}" if others else ""),
        )
    digests = {}
    for variant in found:
        _, layout = build_command.build(variant)
        digests[variant.target] = push_layout(layout, f"{registry}/{variant.image}:{variant.tag}", plain_http)
    return digests


def push_layout(layout: Path, reference: str, plain_http: bool = False) -> str:
    """Push an OCI layout and return its digest.

    Raises:
        ReleaseError: crane failed, or did not say which digest it pushed.
    """
    said = tools.run("crane", "push", *(["--insecure"] if plain_http else []), layout, reference)
    digest = re.search(r"@(sha256:[0-9a-f]{64})\s*$", said)
    if digest is None:
        raise ReleaseError(DATA, f"crane push did not say which digest it pushed:\n{said}")
    return digest[1]
