"""A whole release to a registry of this machine: push, mirror, install by digest, sign."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml
from images.builder.catalogue import LOCK, variants
from release import tools
from release.artifacts import Artifact, charts, read_references
from release.tests.conftest import Release

from charts.helm import manifests, output
from charts.images import images

CHARTS = [chart.name for chart in charts()]


@pytest.fixture
def lock(pushed: Path, release: Release, tmp_path: Path) -> Path:
    """A copy of the lock with the digests of what was pushed."""
    path = tmp_path / "images.lock.yaml"
    path.write_text(LOCK.read_text())
    release("digests", pushed, "--lock", path)
    return path


@pytest.fixture
def published(registry: str, lock: Path, release: Release, tmp_path: Path) -> Path:
    """The list of charts pushed to `REGISTRY/built/stoker-dev/charts` with that lock."""
    path = tmp_path / "charts.txt"
    words = ["--registry", f"{registry}/built/stoker-dev", "--plain-http", "--lock", lock, "--out", path]
    release("charts", *CHARTS, *words, "--packages", tmp_path / "packages")
    return path


def mirror(release: Release, registry: str, lock: Path, *words: str) -> list[Artifact]:
    """Copy all that the mirror list names to `REGISTRY/mirror`, and return it as it lies there."""
    source = ["--registry", f"{registry}/built/stoker-dev", "--plain-http", "--lock", str(lock), "--resolve", *words]
    commands = release("mirror-list", *source, "--prefix", f"{registry}/mirror").stdout
    # The paths of real releases begin after the registry's host; here that is `built/stoker-dev`.
    path = f"{os.environ['PATH']}{os.pathsep}{tools.path('crane').parent}"
    subprocess.run(["sh", "-ec", commands], check=True, env={**os.environ, "PATH": path}, capture_output=True)
    listed = read_references(release("mirror-list", *source).stdout)
    return [artifact.below(f"{registry}/mirror") for artifact in listed]


def test_a_chart_is_not_published_before_its_images(release: Release, registry: str) -> None:
    words = ["--registry", f"{registry}/built", "--plain-http"]
    refused = release("charts", "training-runtimes", *words, code=65)
    assert "names images that are not published: ghcr.io/stoker-dev/" in refused.stderr


def test_what_is_published_is_installed_by_digest_from_a_mirror(
    release: Release, registry: str, lock: Path, published: Path
) -> None:
    copied = mirror(release, registry, lock)
    assert len(copied) == len(variants()) + len(CHARTS)
    digests = {item.name: item.digest for item in read_references(published.read_text())}
    for chart in charts():
        reference = f"oci://{registry}/mirror/built/stoker-dev/charts/{chart.name}@{digests[chart.name]}"
        shown = yaml.safe_load(output("helm", "show", "chart", reference, "--plain-http"))
        listed = {item["image"] for item in yaml.safe_load(shown["annotations"]["artifacthub.io/images"])}
        rendered = images(
            manifests(
                output(
                    "helm", "template", chart.name, reference, "--plain-http", "--set", "skipApiCheck=true",
                    "--values", chart.folder / "ci" / "default-values.yaml",
                    "--set", f"global.imageRegistry={registry}/mirror/built",
                )
            )
        )  # fmt: skip
        assert rendered
        assert all(
            image.startswith(f"{registry}/mirror/built/stoker-dev/") and "@sha256:" in image for image in rendered
        )
        assert {image.replace(f"{registry}/mirror/built", "ghcr.io") for image in rendered} <= listed
        assert rendered <= {item.reference for item in copied}
        for image in rendered:
            assert output("crane", "digest", image).strip() == image.partition("@")[2]


@pytest.mark.full
def test_what_is_published_is_signed_and_verified_at_the_mirror_too(
    release: Release,
    registry: str,
    lock: Path,
    pushed: Path,
    published: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Full, because cosign is larger than all other tools and takes minutes to build."""
    monkeypatch.setenv("COSIGN_PASSWORD", "secret")
    private, public = (tmp_path / f"cosign.{suffix}" for suffix in ("key", "pub"))
    subprocess.run([tools.path("cosign"), "generate-key-pair"], cwd=tmp_path, check=True, capture_output=True)
    release("verify", pushed, "--key", public, "--plain-http", code=69)
    release("sign", pushed, published, "--key", private, "--plain-http")
    release("verify", pushed, published, "--key", public, "--plain-http")

    signed = [item for item in mirror(release, registry, lock, "--signatures") if item.digest]
    assert len(signed) == len(variants()) + len(CHARTS)
    there = tmp_path / "mirror.txt"
    there.write_text("".join(f"{item.reference}\n" for item in signed))
    release("verify", there, "--key", public, "--plain-http")

    other = tmp_path / "other"
    other.mkdir()
    subprocess.run([tools.path("cosign"), "generate-key-pair"], cwd=other, check=True, capture_output=True)
    release("verify", there, "--key", other / "cosign.pub", "--plain-http", code=69)


def test_nothing_but_a_digest_is_signed(release: Release, tmp_path: Path) -> None:
    by_tag = tmp_path / "list.txt"
    by_tag.write_text("localhost:5000/stoker-dev/trl:0.1.0-cpu\n")
    key = tmp_path / "cosign.pub"
    key.touch()
    refused = release("verify", by_tag, "--key", key, code=65)
    assert "has no digest: a tag can move, so only digests are signed" in refused.stderr
