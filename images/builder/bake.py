"""Tells `docker buildx bake` the names and tags of `images.lock.yaml`, as a file it reads beside docker-bake.hcl."""

from __future__ import annotations

import json

from images.builder import ROOT
from images.builder.catalogue import variants
from images.builder.install import CommandLine

FILE = ROOT / "images" / "docker-bake.json"


def variables() -> dict[str, str]:
    """Return the bake variables: REGISTRY, and for every variant its tag, such as TRL_CPU_TAG."""
    found = variants()
    tags = {f"{variant.target}_tag".replace("-", "_").upper(): variant.tag for variant in found}
    return {"REGISTRY": found[0].registry, **tags}


def document() -> str:
    """Return the content of the file."""
    return json.dumps({"variable": {name: {"default": value} for name, value in variables().items()}}, indent=2) + "\n"


def main() -> None:
    """Print the content of the file."""
    CommandLine(
        prog="images/bake",
        description="Print the variables that docker-bake.hcl takes from images.lock.yaml; a test compares "
        f"{FILE.relative_to(ROOT)} with them.",
        epilog="example: images/bake > images/docker-bake.json",
    ).parse_args()
    print(document(), end="")
