"""What the guides to releases and air gaps tell people to type is what there is."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from release import ROOT, signing
from release.artifacts import charts, registry

from charts.helm import TRAINING_RUNTIMES, render
from charts.images import images

RELEASE, AIR_GAP = ((ROOT / "docs" / "guides" / name).read_text() for name in ("release.md", "airgap.md"))


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


@pytest.mark.full
def test_a_release_can_be_tried_out_as_the_document_says(registry: str, tmp_path: Path) -> None:
    """As it stands there, but for the registry, which is the tests' own. Builds images: needs what tests/e2e needs."""
    section = RELEASE.partition("## Try it out\n")[2]
    block = re.search(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert block
    script, served = re.subn(r"^crane registry serve .*&$", "", block[1], flags=re.MULTILINE)
    assert served == 1
    environment = {**os.environ, "COSIGN_PASSWORD": "secret", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script.replace("127.0.0.1:5000", registry)],
        cwd=ROOT, env=environment, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    listed = [line for line in done.stdout.splitlines() if line.startswith("crane copy")]
    # Each with its signatures.
    assert [line.partition(f"{registry}/mirror/trial/")[2].partition(":")[0] for line in listed] == [
        name for name in ("trl", "fetch", "charts/training-runtimes") for _ in range(2)
    ]


def test_what_the_air_gapped_install_pulls_is_what_was_copied() -> None:
    copy = re.search(r'^make mirror-list (PREFIX=\S+ ACCELERATOR="[^"]+")', AIR_GAP, re.MULTILINE)
    install = re.search(
        r"^helm install training-runtimes oci://(\S+) --version (\S+).*\n  --set (\S+)$", AIR_GAP, re.MULTILINE
    )
    assert copy
    assert install
    listing = ["make", "--silent", "mirror-list", *shlex.split(copy[1])]
    commands = subprocess.run(listing, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    copied = {line.split()[-1] for line in commands.splitlines()}
    path, _, image_registry = install[3].partition("=")
    needed = images(render(TRAINING_RUNTIMES, settings=[f'{path}="{image_registry}"']))
    assert needed
    assert {image.partition("@")[0] for image in needed} <= copied
    assert f"{install[1]}:{install[2]}" in copied
