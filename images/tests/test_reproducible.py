"""An image that is built again is the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from images.builder import ROOT
from images.builder.containers import need_programs


def started(cache: Path) -> subprocess.Popen[str]:
    """Build the smallest image of the runner's from nothing but what is downloaded."""
    cache.mkdir()
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    return subprocess.Popen([ROOT / "images/build", "fetch"], env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.full  # builds twice, base system and all
def test_two_builds_from_nothing_are_one_digest(tmp_path: Path) -> None:
    try:
        need_programs()
    except SystemExit as error:
        pytest.skip(f"images cannot be built here: {error}")
    digests = []
    for build in [started(tmp_path / name) for name in ("one", "other")]:
        printed, _ = build.communicate()
        assert build.returncode == 0
        layout = Path(json.loads(printed)["oci"])
        digests += [entry["digest"] for entry in json.loads((layout / "index.json").read_text())["manifests"]]
    assert digests == digests[:1] * 2
