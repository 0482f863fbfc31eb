"""The command line of `images/build`."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from images.builder import cache, containers, programs
from images.builder.catalogue import variants
from images.builder.install import EX_CONFIG, EX_USAGE, CommandLine, fail

if TYPE_CHECKING:
    from pathlib import Path

    from images.builder.catalogue import Variant


def build(variant: Variant) -> tuple[str, Path]:
    """Return an image's tag and OCI layout, built without Docker where it is missing.

    Raises:
        SystemExit: only Docker builds it (78); else as `containers.build` and `programs.build`.
    """
    if variant.needs_docker:
        fail(EX_CONFIG, f"only Docker builds {variant.target}: docker buildx bake (see images/README.md)")
    if programs.is_program(variant.folder):
        return programs.build(variant)
    return containers.build(variant)


def main() -> None:
    """Build one image and print its name, tag and OCI layout as one line of JSON.

    Raises:
        SystemExit: 64 for an image or accelerator the lock does not have; else as `build`.
    """
    known = {(variant.image, variant.accelerator): variant for variant in variants()}
    names = sorted({image for image, _ in known})
    parser = CommandLine(
        prog="images/build",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Build an image from its Dockerfile without Docker, with buildah (root on Debian or Ubuntu;\n"
        "buildah and debootstrap are installed where they are missing), and print one line of JSON:\n"
        '{"name": …, "tag": …, "oci": the folder of an OCI image layout}. The second call is instant.',
        epilog=f"""environment:
  WHEELS           folder that may hold a CPU torch (default: ../shared/wheels beside the checkout, where it exists)
  TORCH_CPU_INDEX  PyTorch's index of CPU wheels or a mirror of it, asked next; PyPI's torch is last
  XDG_CACHE_HOME   all lies under its folder `stoker/images` (now {cache.root() / "images"})
  PIP_*            pip's settings, also those in its files, are handed to the build and not to the image

examples:
  images/build trl --accelerator cpu
  images/build fetch
  crane push "$(images/build trl --accelerator cpu | jq -r .oci)" localhost:5000/trl:test

exit codes: 0 built, 64 wrong usage, 66 a lock is missing, 69 a package cannot be had or a step failed, 78 this machine
cannot do it""",
    )
    parser.add_argument("name", choices=names, help="the image")
    parser.add_argument(
        "--accelerator", help="a variant of the image in images.lock.yaml; may be left out where there is only one"
    )
    options = parser.parse_args()
    has = [accelerator for image, accelerator in known if image == options.name]
    accelerator = options.accelerator or (has[0] if len(has) == 1 else None)
    if accelerator is None:
        fail(EX_USAGE, f"{options.name} has several variants: add --accelerator, one of: {', '.join(has)}")
    variant = known.get((options.name, accelerator))
    if variant is None:
        fail(EX_USAGE, f"{options.name} has no variant {accelerator!r}, but: {', '.join(has)}")
    tag, layout = build(variant)
    print(json.dumps({"name": variant.image, "tag": tag, "oci": str(layout)}))
