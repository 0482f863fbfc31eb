"""Which images a release builds, and with what."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from images.builder import containers, programs
from images.builder.catalogue import platforms, variants
from release import ROOT, images
from release.errors import ReleaseError

if TYPE_CHECKING:
    from collections.abc import Callable

    from images.builder.catalogue import Variant


def test_what_has_a_digest_is_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = variants()
    published = [replace(first, digest=f"sha256:{'a' * 64}"), *others]
    monkeypatch.setattr(images, "variants", lambda: published)
    assert images.unpublished() == others
    with pytest.raises(ReleaseError, match=f"is published .* give {first.image} a new version"):
        images.unpublished([first.target])


def test_single_images_are_chosen_by_their_target() -> None:
    (found,) = images.unpublished(["trl-cpu"])
    assert (found.image, found.accelerator) == ("trl", "cpu")
    with pytest.raises(ReleaseError, match=r"there is no image 'tlr-cpu', but: trl-cuda, trl-cpu"):
        images.unpublished(["tlr-cpu"])


def test_docker_builds_the_targets_and_attaches_sbom_and_provenance() -> None:
    command = images.bake_command(variants(), Path("metadata.json"))
    assert command[:2] == ["buildx", "bake"]
    options = ["--set=*.output=type=registry,rewrite-timestamp=true", "--sbom=true", "--provenance=mode=max"]
    assert {*options, "--metadata-file=metadata.json"} <= set(command)
    files = [ROOT / word.partition("=")[2] for word in command if word.startswith("--file=")]
    targets = [word for word in command[2:] if not word.startswith("--")]
    hcl = next(path for path in files if path.suffix == ".hcl").read_text()
    assert set(targets) <= set(re.findall(r'^target "([^"]+)"', hcl, re.MULTILINE))
    assert targets == [variant.target for variant in variants()]


def test_docker_builds_for_the_platforms_that_the_lock_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, str] = {}

    def show(*words: str, env: dict[str, str]) -> None:
        told.update(env)
        metadata = next(word.partition("=")[2] for word in words if word.startswith("--metadata-file="))
        Path(metadata).write_text('{"fetch": {"containerimage.digest": "sha256:0"}}')

    monkeypatch.setattr("release.tools.show", show)
    (pushed,) = images.push(images.unpublished(["fetch"]), "registry.example.com/trial", "docker")
    assert told["PLATFORMS"].split(",") == platforms()
    assert pushed.digest == "sha256:0"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is built without Docker, as the builder and the target."""
    found: list[tuple[str, str]] = []

    def builder(name: str) -> Callable[[Variant], tuple[str, Path]]:
        def build(variant: Variant) -> tuple[str, Path]:
            found.append((name, variant.target))
            return variant.tag, Path(variant.target)

        return build

    for module in (containers, programs):
        monkeypatch.setattr(module, "build", builder(module.__name__))
    monkeypatch.setattr(images, "push_layout", lambda layout, reference, plain_http: f"sha256:{layout}")
    return found


def test_without_docker_a_program_is_built_as_one(built: list[tuple[str, str]]) -> None:
    pushed = images.push(images.unpublished(["proxy", "fetch"]), "registry.example.com/trial", "buildah")
    assert set(built) == {(programs.__name__, "proxy"), (containers.__name__, "fetch")}
    assert {artifact.digest for artifact in pushed} == {"sha256:proxy", "sha256:fetch"}


def test_what_only_docker_builds_is_refused_before_the_first_build(built: list[tuple[str, str]]) -> None:
    told = "only Docker builds vllm-cuda: use the builder docker, or name the others: fetch$"
    with pytest.raises(ReleaseError, match=told) as refused:
        images.push(images.unpublished(["fetch", "vllm-cuda"]), "registry.example.com/trial", "buildah")
    assert (refused.value.code, built) == (78, [])
