"""Pictures of pages as a browser shows them: those of `docs/images` are made here, from runs that are named."""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

import pytest
from runner.tests.report.hostile import write_run

from browser.debian import NoChromiumError
from browser.page import browsing
from stoker.report.write import compare, write_report

PICTURES = Path(__file__).parents[3] / "docs" / "images"
# Output folders of finished runs; `make pictures` sets it.
RUNS = [Path(name) for name in os.environ.get("STOKER_PICTURES_OF", "").split()]
# Leaves of a page what fits beside a text.
TOP = """for (const part of [document.documentElement, document.body])
  part.style.cssText = "height: 1000px; overflow: hidden; box-sizing: border-box; margin-block: 0"; null"""


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """The named runs, else two of made-up numbers, whose pictures are not kept."""
    if RUNS:
        return RUNS
    made = []
    for name, speed in (("first", 30), ("second", 15)):
        lines = [{"step": step, "loss": 0.5 + math.exp(-step / speed), "learning_rate": 1e-4} for step in range(1, 99)]
        made.append(write_run(tmp_path / name, lines))
        assert write_report(made[-1], {"method": "sft"})
    return made


@pytest.mark.full  # fetches Chromium
def test_pictures_of_a_report_and_of_a_comparison(runs: list[Path], tmp_path: Path) -> None:
    compare(runs, tmp_path / "comparison.html")
    pages = {"report": runs[0] / "report.html", "comparison": tmp_path / "comparison.html"}
    try:
        with browsing() as shown:
            for name, page in pages.items():
                shown.open(page.resolve().as_uri())
                shown.run(TOP)
                shown.picture(tmp_path / f"{name}.png")
    except NoChromiumError as error:
        pytest.skip(str(error))
    for name in pages:
        made = tmp_path / f"{name}.png"
        assert made.read_bytes().startswith(b"\x89PNG")
        assert made.stat().st_size < 2**20, "Git takes no larger file"
        if RUNS:
            shutil.copyfile(made, PICTURES / made.name)
