"""Images: made of programs, pushed to the cluster's registry."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import oci
from .artifacts import (
    COREDNS,
    JOBSET,
    KUEUE,
    LOCAL_PATH_PROVISIONER,
    PAUSE,
    TRAINER,
    VOLUME_HELPER,
    GoModule,
)
from .commands import Run
from .errors import ClusterError, UsageError


@dataclass(frozen=True)
class Image:
    """An image of a single static program.

    Attributes:
        module: What builds the program.
        program: Where the image has it; upstream's chart or manifest may name the path.
    """

    module: GoModule
    program: str

    @property
    def repository(self) -> str:
        """Its name in the registry."""
        return f"cluster/{self.module.name}"

    @property
    def name(self) -> str:
        """Repository and tag."""
        return f"{self.repository}:{self.module.version}"


KUEUE_IMAGE = Image(KUEUE, "/manager")
COREDNS_IMAGE = Image(COREDNS, "/coredns")
JOBSET_IMAGE = Image(JOBSET, "/manager")
TRAINER_IMAGE = Image(TRAINER, "/manager")
LOCAL_PATH_PROVISIONER_IMAGE = Image(LOCAL_PATH_PROVISIONER, "/local-path-provisioner")
PAUSE_IMAGE = Image(PAUSE, "/pause")
VOLUME_HELPER_IMAGE = Image(VOLUME_HELPER, "/volume-helper")


def publish(images: Iterable[Image], folders: dict[GoModule, Path], registry: str, run: Run) -> None:
    """Make images of built programs and push them to ``registry`` (host:port).

    Raises:
        ClusterError: A push failed.
    """

    def one(image: Image) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            layout = Path(temporary) / "layout"
            program = folders[image.module] / image.module.name
            oci.write_layout(layout, {image.program: program}, [image.program])
            push(layout, image.name, registry, run)

    with ThreadPoolExecutor() as pool:
        list(pool.map(one, images))


def push(layout: Path, name: str, registry: str, run: Run) -> str:
    """Push an OCI layout to ``registry`` under ``name`` and return the full reference with its digest.

    Raises:
        UsageError: The folder is not an OCI layout, or the name has no tag.
        ClusterError: crane failed.
    """
    repository, colon, tag = name.rpartition(":")
    if not colon or not repository or "/" in tag:
        raise UsageError(f"{name!r} is not NAME:TAG, as in trainer:1.0")
    try:
        index = oci.manifest_count(layout) > 1
    except (OSError, ValueError) as error:
        raise UsageError(f"{layout} is not an OCI layout: {error}") from error
    reference = f"{registry}/{name}"
    output = run(["crane", "push", "--insecure", *(["--index"] if index else []), str(layout), reference])
    digest = output.strip().rpartition("@")[2]
    if not digest.startswith("sha256:"):
        raise ClusterError(f"crane push {reference} printed no digest: {output.strip()!r}")
    return f"{reference}@{digest}"
