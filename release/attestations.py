"""Attaches to what was pushed where it comes from, and what is in it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from release import bill, parts, provenance, referrers
from release.referrers import File

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from release.artifacts import Artifact


def attach(artifacts: Iterable[Artifact], lock: Path, plain_http: bool = False) -> list[Artifact]:
    """Push provenance and SBOM of artifacts beside them, and return both with their digests.

    Each is a referrer of the artifact, and has its tag with `.provenance` or `.sbom` behind it, so that crane can read
    it too.

    Args:
        artifacts: what was pushed.
        lock: the lock of images that charts were packaged with.
        plain_http: the registry speaks HTTP.

    Raises:
        ReleaseError: an artifact has no digest, is not of this checkout, or the registry refused.
    """
    attached = []
    for artifact in artifacts:
        held, sources = parts.parts_of(artifact, lock)
        documents = {
            "provenance": File("provenance.json", provenance.MEDIA_TYPE, provenance.statement(artifact, sources)),
            "sbom": File("sbom.json", bill.MEDIA_TYPE, bill.document(artifact, held)),
        }
        for name, file in documents.items():
            target = replace(artifact, tag=f"{artifact.tag}.{name}", digest=None)
            attached.append(referrers.push(target, file.media_type, [file], artifact, http=plain_http))
    return attached
