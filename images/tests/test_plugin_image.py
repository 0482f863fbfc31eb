"""The Dockerfile of the example plugin adds its backend to the trainer's image."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from images.builder import ROOT, cache, debian, pip_settings
from images.builder.catalogue import variants
from images.builder.containers import Buildah, build, need_programs

PLUGIN = ROOT / "examples" / "backend-plugin"
BASE, IMAGE = "localhost/stoker-tests/trl:base", "localhost/stoker-tests/plugin:latest"
# What a runner in the image finds, and whether the image has pip.
LOOK = """
import importlib.metadata, importlib.util
names = [one.name for one in importlib.metadata.entry_points(group="stoker.backends") if one.load()]
print("classifier" in names, importlib.util.find_spec("pip") is None)
"""


@contextmanager
def storage() -> Iterator[Buildah]:
    """Hold the storage of the images that are built here, in which the test leaves nothing."""
    home = cache.root() / "images"
    buildah = Buildah(home / "buildah")
    with cache.locked(home / "buildah.lock"):
        try:
            yield buildah
        finally:
            buildah("rm", "--all")
            for name in (IMAGE, BASE):
                if buildah.has(name):
                    buildah("rmi", name)


@pytest.mark.full  # unpacks the trainer's image
def test_the_image_has_the_plugins_backend(tmp_path: Path) -> None:
    try:
        need_programs()
    except SystemExit as error:
        pytest.skip(f"images cannot be built here: {error}")
    (trl,) = (one for one in variants() if one.target == "trl-cpu")
    tag, layout = build(trl)
    settings = pip_settings.write_secrets(tmp_path)
    known = {"pip.conf": "/etc/pip.conf", "ca.crt": "/etc/ssl/certs/ca-certificates.crt"}
    volumes = [
        word for name, place in known.items() if name in settings for word in ("-v", f"{settings[name]}:{place}")
    ]
    # buildah makes a name of the folder's, and no part of a name begins with a dot, as that of the cache may.
    shutil.copytree(layout, tmp_path / "trl")
    with storage() as buildah:
        buildah("tag", buildah("pull", "--quiet", f"oci:{tmp_path / 'trl'}:{tag}"), BASE)
        buildah(
            "build", "--isolation", "chroot", "--network", "host", "--pull-never", *volumes,
            "--build-arg", f"PYTHON=localhost/stoker/base:{debian.key()}", "--build-arg", f"BASE={BASE}",
            "--tag", IMAGE, "--file", PLUGIN / "Dockerfile", PLUGIN, log=tmp_path / "build.log",
        )  # fmt: skip
        container = buildah("from", "--pull-never", IMAGE)
        assert buildah("run", "--isolation", "chroot", container, "--", "python", "-c", LOOK) == "True True"
