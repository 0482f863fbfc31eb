"""The program that mends an image's packages, where it has one: its Dockerfile and the environment here run it."""

from __future__ import annotations

from pathlib import Path


def programs(image: Path) -> list[Path]:
    """Return the program of an image's folder; none where nothing is to be mended."""
    return [path for path in [image / "mend.py"] if path.exists()]
