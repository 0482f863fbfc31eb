"""Docker builds the images that the catalogue names."""

from __future__ import annotations

import re

from images.builder import ROOT, bake
from images.builder.catalogue import variants

HCL = (ROOT / "images" / "docker-bake.hcl").read_text(encoding="utf-8")


def test_the_generated_file_is_up_to_date() -> None:
    assert bake.FILE.read_text(encoding="utf-8") == bake.document(), "run: images/bake > images/docker-bake.json"


def test_every_variant_is_a_target_of_the_default_group() -> None:
    targets = set(re.findall(r'^target "([a-z][^"]*)"', HCL, re.MULTILINE))
    group = re.search(r'group "default" \{\s*targets = \[([^]]*)\]', HCL)
    assert group
    assert targets == {variant.target for variant in variants()} == set(re.findall(r'"([^"]+)"', group[1]))


def test_every_variable_from_the_lock_is_used_and_no_tag_is_written_by_hand() -> None:
    for name, value in bake.variables().items():
        assert re.search(rf"\b{name}\b", HCL)
        assert value not in HCL


def test_targets_are_for_any_platform_and_their_arguments_are_declared_in_the_dockerfile() -> None:
    targets: dict[str, str] = dict(re.findall(r'^target "([^"]+)" \{(.*?)^\}', HCL, re.DOTALL | re.MULTILINE))

    def lineage(name: str) -> str:
        parents = re.findall(r'inherits\s*=\s*\["([^"]+)"\]', targets[name])
        return targets[name] + "".join(map(lineage, parents))

    for variant in variants():
        text = lineage(variant.target)
        assert 'platforms = PLATFORMS == "" ? null : split(",", PLATFORMS)' in text, variant.target
        (path,) = re.findall(r'dockerfile\s*=\s*"([^"]+)"', text)
        declared = set(re.findall(r"^ARG ([A-Z_]+)", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE))
        arguments = {name for block in re.findall(r"args = \{(.*?)\}", text, re.DOTALL) for name in
                     re.findall(r"^\s*([A-Z_]+)\s*=", block, re.MULTILINE)}  # fmt: skip
        assert {"BASE_IMAGE", "REVISION", "IMAGE_VERSION"} <= arguments <= declared, variant.target
