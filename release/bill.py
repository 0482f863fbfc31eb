"""What is in an artifact, as a CycloneDX SBOM: the same bytes at every build of a commit."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from release import commit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from release.artifacts import Artifact
    from release.parts import Part

MEDIA_TYPE = "application/vnd.cyclonedx+json"


def document(artifact: Artifact, held: Iterable[Part]) -> bytes:
    """Return the SBOM of an artifact.

    It names no registry and no time but the commit's, so that it is the same wherever the artifact is built.

    Args:
        artifact: the artifact, with its digest.
        held: what is in it.
    """
    bill = Bom(serial_number=uuid5(NAMESPACE_URL, f"{artifact.name}@{artifact.digest}"))
    bill.metadata.timestamp = datetime.fromtimestamp(int(commit.seconds()), UTC)
    root = _component("oci", artifact.name, artifact.digest or artifact.tag)
    root.version = artifact.tag
    if not artifact.is_image:
        root.type = ComponentType.APPLICATION
    bill.metadata.component = root
    for part in held:
        bill.components.add(_component(part.kind, part.name, part.version))
    bill.register_dependency(root, list(bill.components))
    return JsonV1Dot6(bill).output_as_string(indent=1).encode() + b"\n"


def _component(kind: str, name: str, version: str) -> Component:
    group, _, last = name.rpartition("/")
    url = PackageURL(kind, group or None, last, version or None)
    type_ = ComponentType.CONTAINER if kind in ("docker", "oci") else ComponentType.LIBRARY
    return Component(name=name, version=version or None, type=type_, purl=url, bom_ref=str(url))
