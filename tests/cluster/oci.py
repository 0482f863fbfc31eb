"""OCI image layouts of single static programs, written without a container engine.

The layer is an uncompressed tar with fixed times and owners, so the same program gives the same digest, and nodes
need not unpack what never crosses a network.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

Json = dict[str, object]

_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_layout(layout: Path, files: Mapping[str, Path], entrypoint: Sequence[str], user: str = "65532:65532") -> None:
    """Write an image as an OCI layout.

    Args:
        layout: The folder to write; it must not exist.
        files: Path in the image (absolute) → program on this machine. All become mode 0755, owner root.
        entrypoint: The command, as exec takes it.
        user: ``UID:GID`` the image runs as unless the pod says otherwise; 65532 is "nonroot" by convention.
    """
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layer = _blob(blobs, _tar(files))
    machine = platform.machine()
    config = _blob(
        blobs,
        _json(
            {
                "architecture": _ARCHITECTURES.get(machine, machine),
                "os": "linux",
                "config": {"Entrypoint": list(entrypoint), "User": user, "WorkingDir": "/"},
                "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
            }
        ),
    )
    manifest = _blob(
        blobs,
        _json(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": {"mediaType": _CONFIG, **config},
                "layers": [{"mediaType": _LAYER, **layer}],
            }
        ),
    )
    index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": [{"mediaType": _MANIFEST, **manifest}]}
    (layout / "index.json").write_bytes(_json(index))
    (layout / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))


def manifest_count(layout: Path) -> int:
    """Return how many images an OCI layout names in its index.

    Raises:
        OSError: The folder has no readable index.json.
        ValueError: Its index.json is not an OCI index.
    """
    index = json.loads((layout / "index.json").read_text())
    if not isinstance(index, dict) or not isinstance(index.get("manifests"), list):
        raise ValueError("index.json has no list of manifests")
    return len(index["manifests"])


def _tar(files: Mapping[str, Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, source in sorted(files.items()):
            content = source.read_bytes()
            entry = tarfile.TarInfo(name.lstrip("/"))
            entry.mode = 0o755
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _blob(blobs: Path, content: bytes) -> Json:
    digest = hashlib.sha256(content).hexdigest()
    (blobs / digest).write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


def _json(document: Json) -> bytes:
    return json.dumps(document, sort_keys=True).encode()
