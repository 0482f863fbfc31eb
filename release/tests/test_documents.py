"""What docs/release.md and docs/airgap.md tell people to type is what there is."""

from __future__ import annotations

import re
import subprocess

import pytest
from release import ROOT, signing
from release.artifacts import charts, registry

from charts.helm import TRAINING_RUNTIMES, render
from charts.images import images

RELEASE, AIR_GAP = ((ROOT / "docs" / name).read_text() for name in ("release.md", "airgap.md"))


def test_the_command_that_verifies_asks_for_who_signs() -> None:
    assert f"--certificate-identity-regexp '{signing.IDENTITY}'" in RELEASE
    assert f"--certificate-oidc-issuer {signing.ISSUER}" in RELEASE


@pytest.mark.parametrize("ref", ["heads/main", "tags/training-runtimes-0.1.0"])
def test_who_signs_is_the_release_workflow_of_this_repository(ref: str) -> None:
    (workflow,) = (ROOT / ".github" / "workflows").glob("release.yaml")
    (home,) = {re.search(r"^home: (\S+)$", (c.folder / "Chart.yaml").read_text(), re.MULTILINE)[1] for c in charts()}  # type: ignore[index]
    assert re.search(signing.IDENTITY, f"{home}/{workflow.relative_to(ROOT)}@refs/{ref}")
    assert not re.search(signing.IDENTITY, f"{home}-fork/{workflow.relative_to(ROOT)}@refs/{ref}")


def test_where_things_are_published_is_what_the_lock_says() -> None:
    assert f"| images | `{registry()}/NAME:TAG`" in RELEASE
    assert f"| charts | `oci://{registry()}/charts/NAME`" in RELEASE


def test_what_the_air_gapped_install_pulls_is_what_was_copied() -> None:
    copy = re.search(r"^make mirror-list (PREFIX=\S+ ACCELERATOR=\S+)", AIR_GAP, re.MULTILINE)
    install = re.search(
        r"^helm install training-runtimes oci://(\S+) --version (\S+).*\n  --set (\S+)$", AIR_GAP, re.MULTILINE
    )
    assert copy
    assert install
    commands = subprocess.run(
        ["make", "--silent", "mirror-list", *copy[1].split()], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    copied = {line.split()[-1] for line in commands.splitlines()}
    path, _, image_registry = install[3].partition("=")
    needed = images(render(TRAINING_RUNTIMES, settings=[f'{path}="{image_registry}"']))
    assert needed
    assert {image.partition("@")[0] for image in needed} <= copied
    assert f"{install[1]}:{install[2]}" in copied
