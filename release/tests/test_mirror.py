"""What an air-gapped site is told to copy."""

from __future__ import annotations

import pytest
from images.builder.catalogue import LOCK, variants
from release.artifacts import Artifact, charts, locked_images, read_references, references, registry
from release.errors import ReleaseError
from release.mirror import copy_commands, with_signatures
from release.tests.conftest import Release

DIGEST = f"sha256:{'a' * 64}"
IMAGE = Artifact("ghcr.io/stoker-dev/trl", "0.1.0-cpu", DIGEST)


def test_every_variant_and_every_chart_is_listed(release: Release) -> None:
    listed = {item.reference for item in read_references(release("mirror-list").stdout)}
    assert {reference.partition("@")[0] for reference in listed} == {
        *(variant.reference for variant in variants()),
        *(f"{registry()}/charts/{chart.name}:{chart.version}" for chart in charts()),
    }


def test_a_digest_that_is_known_is_part_of_the_reference() -> None:
    assert IMAGE.reference == f"ghcr.io/stoker-dev/trl:0.1.0-cpu@{DIGEST}"
    assert read_references(references([IMAGE])) == [IMAGE]


def test_copies_keep_path_and_tag() -> None:
    assert copy_commands([IMAGE], "registry.example.com/mirror/") == (
        f"crane copy ghcr.io/stoker-dev/trl:0.1.0-cpu@{DIGEST} registry.example.com/mirror/stoker-dev/trl:0.1.0-cpu\n"
    )


def test_a_url_is_no_prefix(release: Release) -> None:
    refused = release("mirror-list", "--prefix", "https://registry.example.com/mirror", code=64)
    assert "write the registry's host alone, registry.example.com/mirror" in refused.stderr


def test_images_of_one_accelerator_come_with_those_that_need_none() -> None:
    found = {variant.reference: variant.accelerator for variant in variants()}
    assert {found[image.reference.partition("@")[0]] for image in locked_images(LOCK, ["cpu"])} == {"cpu", "any"}


def test_an_accelerator_that_no_image_is_made_for_is_refused(release: Release) -> None:
    refused = release("mirror-list", "--accelerator", "abacus", code=65)
    assert "release: error: no image has a variant 'abacus'; images.lock.yaml has: any, cpu, cuda" in refused.stderr


def test_signatures_follow_what_they_sign() -> None:
    image, signatures = with_signatures([IMAGE])
    assert (image, signatures.reference) == (IMAGE, f"ghcr.io/stoker-dev/trl:sha256-{'a' * 64}")


def test_signatures_of_what_has_no_digest_cannot_be_named() -> None:
    with pytest.raises(ReleaseError, match="add --resolve"):
        with_signatures([Artifact("ghcr.io/stoker-dev/trl", "0.1.0-cpu")])


@pytest.mark.parametrize("line", ["trl", "registry.example.com/trl@sha256:abc", "a b:1"])
def test_a_list_with_something_else_in_it_is_refused(line: str) -> None:
    with pytest.raises(ReleaseError, match="is not NAME:TAG"):
        read_references(f"{IMAGE.reference}\n{line}\n")
