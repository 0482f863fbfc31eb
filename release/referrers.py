"""Pushes files to a registry as OCI artifacts, also such as belong to an image or a chart there (referrers)."""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from release import tools
from release.artifacts import Artifact
from release.errors import DATA, ReleaseError
from release.images import push_layout

if TYPE_CHECKING:
    from collections.abc import Sequence

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_EMPTY = "application/vnd.oci.empty.v1+json"


@dataclass(frozen=True)
class File:
    """A file of an artifact.

    Attributes:
        name: what it is called when it is downloaded.
        media_type: what it is.
        content: its bytes.
    """

    name: str
    media_type: str
    content: bytes


def push(target: Artifact, kind: str, files: Sequence[File], of: Artifact | None = None, *, http: bool) -> Artifact:
    """Push files as an artifact with a tag and return it with its digest, which follows from the files alone.

    Args:
        target: where it goes.
        kind: the artifact's type.
        files: what it holds.
        of: what it belongs to, with its digest: registries list it as one of its referrers.
        http: the registry speaks HTTP.

    Raises:
        ReleaseError: crane failed, or the registry has something else under that digest.
    """
    with tempfile.TemporaryDirectory() as folder:
        layout = Path(folder) / "layout"
        write_layout(layout, kind, files, None if of is None else descriptor(of, http))
        return Artifact(target.repository, target.tag, push_layout(layout, target.reference, http))


def descriptor(artifact: Artifact, http: bool) -> dict[str, Any]:
    """Return how a manifest names another artifact of its registry.

    Raises:
        ReleaseError: it has no digest, or the registry does not have it.
    """
    if artifact.digest is None:
        raise ReleaseError(DATA, f"{artifact.reference} has no digest: only what was pushed has one")
    reference = f"{artifact.repository}@{artifact.digest}"
    text = tools.run("crane", "manifest", *(["--insecure"] if http else []), reference).encode()
    if _digest(text) != artifact.digest:
        raise ReleaseError(DATA, f"{reference}: the registry answers with something else ({_digest(text)})")
    media_type = json.loads(text).get("mediaType", _MANIFEST)
    return {"mediaType": media_type, "digest": artifact.digest, "size": len(text)}


def write_layout(layout: Path, kind: str, files: Sequence[File], subject: dict[str, Any] | None = None) -> None:
    """Write an artifact as an OCI layout, the same bytes for the same files.

    Args:
        layout: the folder, which must not exist.
        kind: the artifact's type.
        files: what it holds.
        subject: what it belongs to.
    """
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(media_type: str, content: bytes) -> dict[str, Any]:
        digest = _digest(content)
        (blobs / digest.partition(":")[2]).write_bytes(content)
        return {"mediaType": media_type, "digest": digest, "size": len(content)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "artifactType": kind,
        "config": blob(_EMPTY, b"{}"),
        "layers": [
            {**blob(file.media_type, file.content), "annotations": {"org.opencontainers.image.title": file.name}}
            for file in files
        ],
        **({"subject": subject} if subject else {}),
    }
    named = blob(_MANIFEST, _json(manifest))
    (layout / "index.json").write_bytes(_json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [named]}))
    (layout / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
