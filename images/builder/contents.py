"""Tells the runner what the images are for and which packages they have: `stoker validate` judges TrainJobs by it.

An image that starts from somebody else's, or that holds no Python, is left out: nobody here knows its packages.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from images.builder import ROOT
from images.builder.catalogue import Variant, platforms, variants
from images.builder.install import ALIASES, CommandLine, entries
from images.builder.locking import OLDEST_PYTHON, blocks
from packaging.markers import Marker
from packaging.utils import canonicalize_name

FILE = ROOT / "runner" / "src" / "stoker" / "cluster" / "images.json"

_PLATFORM = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": f"{OLDEST_PYTHON}.0",
    "python_version": OLDEST_PYTHON,
    "sys_platform": "linux",
}
"""What an image is to the markers of its locks."""

_MARKER = re.compile(r"^\S+==\S+ ; (.+?) *\\?$")


def distributions(requirements: Path, accelerator: str) -> list[str]:
    """Return the distributions that the locks give an image, by their normal names.

    Args:
        requirements: the image's folder of locks.
        accelerator: `cpu` or `cuda`; `any` for an image that needs none.
    """
    aliases = {re.split(r"\s*=\s*", entry, maxsplit=1)[0] for entry in entries(requirements / ALIASES)}
    return sorted(canonicalize_name(name) for name in {*aliases, *locked(requirements, accelerator)})


def locks(requirements: Path, accelerator: str) -> list[Path]:
    """Return the locks that decide which packages an image has; the arguments are those of `distributions`."""
    torch = "torch-cpu.lock" if accelerator == "cpu" else "torch.lock"
    found = [requirements / name for name in ("stack.lock", torch, f"{accelerator}.lock")]
    return [lock for lock in found if lock.exists()]


def locked(requirements: Path, accelerator: str) -> dict[str, str]:
    """Return what the locks say of each package of an image; the arguments are those of `distributions`."""
    found = {}
    for lock in locks(requirements, accelerator):
        for name, text in blocks(lock.read_text(encoding="utf-8")).items():
            marker = _MARKER.match(text.partition("\n")[0])
            if marker is None or Marker(marker[1]).evaluate(_PLATFORM):
                found[name] = text
    return found


def is_from_locks(variant: Variant) -> bool:
    """Return whether the locks of this repository decide which packages an image has."""
    return (variant.folder / "requirements").is_dir() and not variant.needs_docker


def document() -> str:
    """Return the content of the file: registry, platforms, then image and tag → its distributions."""
    known = [variant for variant in variants() if is_from_locks(variant)]
    images = {
        f"{variant.image}:{variant.tag}": distributions(variant.folder / "requirements", variant.accelerator)
        for variant in known
    }
    return json.dumps({"registry": known[0].registry, "platforms": platforms(), "images": images}, indent=1) + "\n"


def main() -> None:
    """Print the content of the file."""
    CommandLine(
        prog="images/contents",
        description="Print which packages each image has by its locks; a test compares "
        f"{FILE.relative_to(ROOT)} with it.",
        epilog=f"example: images/contents > {FILE.relative_to(ROOT)}",
    ).parse_args()
    print(document(), end="")
