"""What decides about an image: digests of the lock, tags of one's own. For all charts: test_air_gap.py."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import yaml

from charts.helm import ROOT, TRAINING_RUNTIMES, render
from charts.runtimes import containers

LOCK = yaml.safe_load((ROOT / "images" / "images.lock.yaml").read_text())
DIGEST = f"sha256:{'0123456789abcdef' * 4}"


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
