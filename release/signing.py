"""Signs what was published and verifies it, with cosign: by the workflow's identity, or with a key of one's own."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from release import tools
from release.errors import DATA, ReleaseError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from release.artifacts import Artifact

ISSUER = "https://token.actions.githubusercontent.com"
IDENTITY = r"^https://github\.com/stoker-dev/stoker/\.github/workflows/release\.yaml@refs/(heads/main|tags/.+)$"
"""Who signs releases: .github/workflows/release.yaml, without any key (Sigstore's OIDC identities)."""


def sign(artifacts: Iterable[Artifact], key: Path | None = None, plain_http: bool = False) -> None:
    """Sign artifacts by their digests; the signatures go into the registry, beside what they sign.

    Args:
        artifacts: what to sign.
        key: a private key of cosign's (`COSIGN_PASSWORD` opens it), then nothing is told to any service; None signs
            with the identity of the workflow this runs in.
        plain_http: the registry speaks HTTP.

    Raises:
        ReleaseError: an artifact has no digest, or cosign failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = ["--yes"]
        if key:
            no_services = Path(folder) / "signing-config.json"
            tools.run("cosign", "signing-config", "create", f"--out={no_services}")
            options += [f"--key={key}", f"--signing-config={no_services}"]
        for artifact in artifacts:
            tools.run("cosign", "sign", *options, *_http(plain_http), _by_digest(artifact))


def verify(artifacts: Iterable[Artifact], key: Path | None = None, plain_http: bool = False) -> None:
    """Verify that artifacts are signed.

    Args:
        artifacts: what to verify.
        key: the public key; None asks for the identity of the release workflow.
        plain_http: the registry speaks HTTP.

    Raises:
        ReleaseError: an artifact has no digest, or no signature that counts.
    """
    by_key = [f"--key={key}", "--insecure-ignore-tlog=true"]
    by_identity = [f"--certificate-identity-regexp={IDENTITY}", f"--certificate-oidc-issuer={ISSUER}"]
    for artifact in artifacts:
        tools.run("cosign", "verify", *(by_key if key else by_identity), *_http(plain_http), _by_digest(artifact))


def _http(plain_http: bool) -> list[str]:
    return ["--allow-http-registry"] if plain_http else []


def _by_digest(artifact: Artifact) -> str:
    if artifact.digest is None:
        raise ReleaseError(DATA, f"{artifact.reference} has no digest: a tag can move, so only digests are signed")
    return f"{artifact.repository}@{artifact.digest}"
