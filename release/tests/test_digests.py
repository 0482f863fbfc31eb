"""Digests get into the lock, and nothing else in it changes."""

from __future__ import annotations

import pytest
import yaml
from images.builder.catalogue import LOCK
from release.artifacts import Artifact
from release.digests import expect_registry, overlay, pushed_digests, with_digests
from release.errors import ReleaseError

ONE, OTHER = (f"sha256:{letter * 64}" for letter in "ab")
TEXT = f"""# The first line.
registry: example.com/team
images:
  trl:  # a comment
    version: 0.1.0
    variants:
      cuda: {{tag: 0.1.0-cuda, digest: null}}  # not yet
      cpu:
        tag: 0.1.0-cpu
        digest:
      rocm: {{tag: 0.1.0-rocm, digest: {OTHER}}}
"""


def test_a_digest_takes_the_place_of_null_and_comments_stay() -> None:
    assert with_digests(TEXT, {("trl", "cuda"): ONE}) == TEXT.replace("digest: null", f"digest: {ONE}")


def test_several_digests_are_written_at_once() -> None:
    written = yaml.safe_load(
        with_digests(TEXT.replace("digest:\n", "digest: ~\n"), {("trl", v): ONE for v in ("cuda", "cpu")})
    )
    assert [written["images"]["trl"]["variants"][v]["digest"] for v in ("cuda", "cpu", "rocm")] == [ONE, ONE, OTHER]


def test_an_empty_digest_is_null_too() -> None:
    written = yaml.safe_load(with_digests(TEXT, {("trl", "cpu"): ONE}))
    assert written["images"]["trl"]["variants"]["cpu"]["digest"] == ONE


def test_the_same_digest_again_changes_nothing() -> None:
    assert with_digests(TEXT, {("trl", "rocm"): OTHER}) == TEXT


def test_a_published_digest_is_never_replaced() -> None:
    with pytest.raises(ReleaseError, match="a published version never changes: give trl a new version"):
        with_digests(TEXT, {("trl", "rocm"): ONE})


def test_what_is_no_digest_is_refused() -> None:
    with pytest.raises(ReleaseError, match="'sha256:abc' is not a digest"):
        with_digests(TEXT, {("trl", "cuda"): "sha256:abc"})


def test_pushed_images_are_found_by_name_and_tag_whatever_the_registry() -> None:
    image = Artifact("localhost:5000/trial/trl", "0.1.0-cuda", ONE)
    assert pushed_digests(TEXT, [image]) == {("trl", "cuda"): ONE}


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (Artifact("localhost:5000/trl", "0.2.0-cuda", ONE), "no image trl with the tag 0.2.0-cuda"),
        (Artifact("localhost:5000/trl", "0.1.0-cuda"), "has no digest"),
    ],
)
def test_an_image_that_the_lock_does_not_have_is_refused(image: Artifact, message: str) -> None:
    with pytest.raises(ReleaseError, match=message):
        pushed_digests(TEXT, [image])


def test_images_of_a_trial_stay_out_of_the_repositorys_own_lock() -> None:
    expect_registry(TEXT, [Artifact("example.com/team/trl", "0.1.0-cuda", ONE)])
    with pytest.raises(ReleaseError, match=r"does not lie in example.com/team.*OVERLAY=FILE"):
        expect_registry(TEXT, [Artifact("localhost:5000/trial/trl", "0.1.0-cuda", ONE)])


def test_an_overlay_has_what_was_built_and_nothing_else() -> None:
    written = yaml.safe_load(overlay(TEXT, {("trl", "cuda"): ONE}))
    variants = {"cuda": {"tag": "0.1.0-cuda", "digest": ONE}}
    assert written == {"registry": "example.com/team", "images": {"trl": {"version": "0.1.0", "variants": variants}}}


def test_the_repositorys_lock_can_be_written() -> None:
    text = LOCK.read_text()
    variants = {
        (name, accelerator): ONE
        for name, image in yaml.safe_load(text)["images"].items()
        for accelerator, variant in image["variants"].items()
        if variant["digest"] is None
    }
    written = with_digests(text, variants)
    assert written.count(ONE) == len(variants)
    assert written.replace(ONE, "null") == text
