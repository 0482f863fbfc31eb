"""Builds an image of one static Go program without Docker: with the Go of this machine, into a bare image."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from images.builder import ROOT, cache, containers
from images.builder.install import EX_CONFIG, EX_UNAVAILABLE, fail, step

if TYPE_CHECKING:
    from images.builder.catalogue import Variant

_SOURCES = ("go.mod", "go.sum", "*.go", "Dockerfile")


def is_program(image: Path) -> bool:
    """Return whether an image holds a Go program and nothing else."""
    return (image / "go.mod").is_file()


def build(variant: Variant) -> tuple[str, Path]:
    """Return the tag and the OCI layout of a program's image, built where it is missing.

    Raises:
        SystemExit: Go is missing (78), or a module cannot be had or built (69).
    """
    image = ROOT / "images" / variant.image
    home = cache.root() / "images"
    sources = [path for name in _SOURCES for path in sorted(image.glob(name))]
    facts = [variant.tag, os.uname().machine, str(containers.TIME)]
    key = cache.digest(facts, [*sources, Path(__file__)], ROOT)
    tag = f"{variant.tag}-{key}"

    def fill(folder: Path) -> None:
        if shutil.which("go") is None:
            fail(EX_CONFIG, "Go is needed: install Go 1.26 or newer (https://go.dev/dl), or build with Docker")
        containers.need_programs()
        with cache.locked(home / "buildah.lock"):
            _build(image, containers.Buildah(home / "buildah"), f"localhost/stoker/{variant.image}:{tag}", folder, tag)

    return tag, cache.entry(home / f"{variant.target}-{key}", variant.target, fill)


def _build(image: Path, buildah: containers.Buildah, name: str, folder: Path, tag: str) -> None:
    program = folder / "caddy"
    with step(f"{image.name}: program"):
        done = subprocess.run(
            # Without the commit, which a build with Docker does not see either.
            ["go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", program, "."],
            cwd=image, env={**os.environ, "CGO_ENABLED": "0"}, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            fail(EX_UNAVAILABLE, f"`go build` failed in {image}")
    with step(f"{image.name}: image"):
        container = buildah("from", "scratch")
        buildah("copy", "--quiet", container, program, "/caddy")
        buildah("config", "--user", "1001:0", "--entrypoint", '["/caddy"]', "--env", f"STOKER_IMAGE_VERSION={tag}",
                "--cmd", "run --config /etc/caddy/Caddyfile", container)  # fmt: skip
        buildah("commit", "--quiet", "--rm", "--format", "oci", "--timestamp", str(containers.TIME), container, name)
        program.unlink()
        buildah("push", "--quiet", name, f"oci:{folder}:{tag}")
        buildah("rmi", name)
