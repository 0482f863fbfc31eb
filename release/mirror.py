"""What a registry without a way out must hold, as references or as the commands that copy them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from release.artifacts import Artifact
from release.errors import DATA, ReleaseError

if TYPE_CHECKING:
    from collections.abc import Sequence


def copy_commands(artifacts: Sequence[Artifact], prefix: str, plain_http: bool = False) -> str:
    """Return one `crane copy` for each artifact, which keeps its digest, its path and its tag.

    Args:
        artifacts: images and charts where they were published.
        prefix: the mirror's host, with a path if wanted; installs then set `global.imageRegistry` to it.
        plain_http: the registries speak HTTP.
    """
    copy = "crane copy --insecure" if plain_http else "crane copy"
    return "".join(
        f"{copy} {artifact.reference} {target.repository}:{target.tag}\n"
        for artifact in artifacts
        for target in [artifact.below(prefix)]
    )


def with_signatures(artifacts: Sequence[Artifact]) -> list[Artifact]:
    """Return artifacts, each followed by its signatures.

    cosign keeps them where OCI's distribution specification lets registries without a referrers API have them: in an
    index whose tag is the digest of what is signed, with a dash for the colon.

    Raises:
        ReleaseError: an artifact has no digest.
    """
    found = []
    for artifact in artifacts:
        if artifact.digest is None:
            raise ReleaseError(DATA, f"{artifact.reference} has no digest, which names its signatures: add --resolve")
        found += [artifact, Artifact(artifact.repository, artifact.digest.replace(":", "-"))]
    return found
