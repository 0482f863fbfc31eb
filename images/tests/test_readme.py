"""The table of images in the README is what the lock has."""

from __future__ import annotations

import re

import pytest
from images.builder import ROOT
from images.builder.catalogue import variants

README = (ROOT / "images" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("image", sorted({variant.image for variant in variants()}))
def test_an_image_has_a_row_that_names_its_variants(image: str) -> None:
    row = re.search(rf"^\| `{image}` \|.*\|([^|]*)\|$", README, re.MULTILINE)
    assert row, f"images/README.md: no row for {image}"
    assert set(re.findall(r"`([a-z0-9]+)`", row[1])) == {v.accelerator for v in variants() if v.image == image}


def test_the_table_has_no_other_image() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)) == {variant.image for variant in variants()}
