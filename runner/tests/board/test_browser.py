"""The page in a real browser: wide and narrow, light and dark, by keys alone, and asking nothing of anybody else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from runner.tests.board.conftest import Start, Started
from runner.tests.board.objects import claims, fill, folders
from runner.tests.runs.api_server import Cluster

from browser.debian import NoChromiumError
from browser.page import Page, browsing

pytestmark = pytest.mark.full  # fetches Chromium

PICTURE = Path(__file__).parents[3] / "docs" / "images" / "board.png"
# Read here, as tests of the runner do not see such variables.
KEPT = "STOKER_PICTURES_OF" in os.environ

FOCUSED = "(document.activeElement.innerText || document.activeElement.id).trim()"
# The contrast of each text with what is behind it, after WCAG 2; elements that show less than 4.5 to 1.
FAINT = """(() => {
  const light = text => {
    const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map(Number).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => {
    for (let one = element; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  return [...document.querySelectorAll("body *")].filter(element =>
    [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())
  ).filter(element => {
    const [a, b] = [light(getComputedStyle(element).color), light(behind(element))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05) < 4.5 && !element.closest("svg");
  }).map(element => element.outerHTML.slice(0, 120));
})()"""


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """A browser of this module."""
    try:
        with browsing() as found:
            yield found
    except NoChromiumError as error:
        pytest.skip(str(error))


@pytest.fixture
def board(cluster: Cluster, kubeconfig: Path, start: Start, tmp_path: Path) -> Started:
    """The page of a busy namespace."""
    fill(cluster)
    return start(*folders(claims(tmp_path / "claims")))


def test_it_fits_every_screen_and_each_scheme_of_colours(page: Page, board: Started, tmp_path: Path) -> None:
    page.console.clear()
    page.requests.clear()
    pictures = set()
    addresses = [
        "/",
        "/runs/ml/done",
        "/runs/ml/wait",
        "/results?claim=shared&folder=older/output",
        "/serving",
        "/none",
    ]
    for path in addresses:
        for width in (320, 768, 1280):
            for dark in (False, True):
                page.open(board.address + path, width, dark)
                assert page.run("document.documentElement.scrollWidth") <= width, (path, width)
                assert page.run(FAINT) == [], (path, width, dark)
                page.picture(tmp_path / "page.png")
                pictures.add((tmp_path / "page.png").read_bytes())
    assert len(pictures) == len(addresses) * 3 * 2
    # The address that leads nowhere is said to, and nothing else is.
    assert set(page.console) <= {"Failed to load resource: the server responded with a status of 404 (Not Found)"}
    assert {request.startswith(board.address) for request in page.requests} == {True}


def test_it_is_used_by_keys_alone(page: Page, board: Started) -> None:
    page.open(board.address + "/")
    order = []
    for _ in range(8):
        page.press("Tab")
        order.append(page.run(FOCUSED))
        assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid", order
    assert order[:3] == ["Skip to the content", "Runs", "Serving"]
    assert order[3].startswith("by hand")
    assert order[4] == "Now"
    assert sorted(order[5:]) == sorted({*order[5:]})
    assert {*order[5:]} <= {"tune", "wait", "new", "broken", "done"}
    name = order[-1]
    page.press("Enter")
    page.wait_for(f"document.querySelector('h1')?.innerText == '{name}'")
    # The first key of a page leads past what all pages have.
    page.press("Tab")
    page.press("Enter")
    page.wait_for("document.activeElement.id == 'main'")


def test_it_is_a_table_for_who_cannot_see_it(page: Page, board: Started) -> None:
    page.open(board.address + "/", 320)
    # Cards look like none, but say so.
    assert page.run("getComputedStyle(document.querySelector('tbody tr')).display") == "block"
    roles = page.run("[...new Set([...document.querySelectorAll('table *[role]')].map(e => e.getAttribute('role')))]")
    assert {*roles} == {"rowgroup", "row", "columnheader", "rowheader", "cell"}
    assert page.run("document.querySelectorAll('h1').length") == 1
    assert page.run("document.documentElement.lang") == "en"
    assert page.run("[...document.querySelectorAll('svg[role=img]')].every(e => e.getAttribute('aria-label'))")


def test_a_picture_of_runs_at_a_glance(page: Page, board: Started, tmp_path: Path) -> None:
    page.open(board.address + "/", 1024)
    made = tmp_path / PICTURE.name
    page.picture(made)
    assert made.read_bytes().startswith(b"\x89PNG")
    assert made.stat().st_size < 2**20, "Git takes no larger file"
    if KEPT:
        shutil.copyfile(made, PICTURE)
