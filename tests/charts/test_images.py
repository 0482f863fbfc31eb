"""Images come from images.lock.yaml and from nowhere else."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import pytest
import yaml

from charts.helm import ROOT, TRAINING_RUNTIMES, render, values_files
from charts.runtimes import containers, runtimes

LOCK = yaml.safe_load((ROOT / "images" / "images.lock.yaml").read_text())
DIGEST = f"sha256:{'0123456789abcdef' * 4}"


def locked_references() -> set[str]:
    """Return the full reference of every image variant in the lock."""
    return {
        f"{LOCK['registry']}/{name}:{variant['tag']}" + (f"@{variant['digest']}" if variant["digest"] else "")
        for name, image in LOCK["images"].items()
        for variant in image["variants"].values()
    }


def images(values: Path, **settings: object) -> set[str]:
    """Return the images that the catalogue renders; settings are top-level values."""
    rendered = render(TRAINING_RUNTIMES, [values], [f"{name}={json.dumps(value)}" for name, value in settings.items()])
    return {container["image"] for container in containers(runtimes(rendered))}


def named_in(values: Path) -> set[str]:
    """Return the images that a values file names itself, which nothing else decides about."""
    named = (yaml.safe_load(values.read_text()) or {}).get("images", {}).values()
    return {f"{image['repository']}:{image['tag']}" for image in named}


@pytest.fixture(params=values_files(TRAINING_RUNTIMES), ids=lambda path: str(path.stem))
def values(request: pytest.FixtureRequest) -> Path:
    chosen: Path = request.param
    return chosen


def test_every_image_is_in_the_lock(values: Path) -> None:
    assert images(values, **{"global": {"imageRegistry": ""}}) - named_in(values) <= locked_references()


@pytest.mark.parametrize("registry", ["registry.example.com", "10.0.0.1:5000/mirror/"])
def test_every_image_moves_with_the_global_registry(values: Path, registry: str) -> None:
    _, path = LOCK["registry"].split("/", 1)
    moved = {
        reference.replace(LOCK["registry"], f"{registry.rstrip('/')}/{path}", 1) for reference in locked_references()
    }
    assert images(values, **{"global": {"imageRegistry": registry}}) - named_in(values) <= moved


def test_a_digest_in_the_lock_is_used(tmp_path: Path) -> None:
    """Digests are known from the first release on; this chart is a copy whose lock has them."""
    chart = copy_with_lock(tmp_path, digest=DIGEST)
    rendered = render(chart, [TRAINING_RUNTIMES / "ci" / "generic-cpu-values.yaml"])
    tag = LOCK["images"]["trl"]["variants"]["cpu"]["tag"]
    assert [c["image"] for c in containers(rendered)] == [f"{LOCK['registry']}/trl:{tag}@{DIGEST}"]


def test_a_tag_of_ones_own_leaves_the_digest_of_the_lock_behind(tmp_path: Path) -> None:
    chart = copy_with_lock(tmp_path, digest=DIGEST)
    rendered = render(chart, [TRAINING_RUNTIMES / "ci" / "generic-cpu-values.yaml"], ['images.trl.tag="mine"'])
    assert [c["image"] for c in containers(rendered)] == [f"{LOCK['registry']}/trl:mine"]


def copy_with_lock(folder: Path, digest: str) -> Path:
    """Return a copy of the catalogue's chart in which every image of the lock has the digest."""
    chart = Path(shutil.copytree(TRAINING_RUNTIMES, folder / TRAINING_RUNTIMES.name))
    lock = copy.deepcopy(LOCK)
    for image in lock["images"].values():
        for variant in image["variants"].values():
            variant["digest"] = digest
    (chart / "files" / "images.lock.yaml").write_text(yaml.safe_dump(lock))
    return chart
