"""The browser of the tests: it shows pages, and notices what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from browser.debian import NoChromiumError
from browser.page import Page, browsing

pytestmark = pytest.mark.full  # fetches Chromium


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """A browser of this module."""
    try:
        with browsing() as found:
            yield found
    except NoChromiumError as error:
        pytest.skip(str(error))


def test_it_notices_what_a_page_complains_of_and_asks_for(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(
        "<!doctype html><title>wrong</title><body><script>console.log('told', 1)</script>"
        "<script>throw new Error('broken')</script><img src='missing.png'>"
    )
    page.open(file.as_uri())
    assert page.requests == [file.as_uri(), (tmp_path / "missing.png").as_uri()]
    assert "told 1" in page.console
    assert any("broken" in line for line in page.console)
    assert any("ERR_FILE_NOT_FOUND" in line for line in page.console)


def test_it_shows_a_page_in_each_scheme_of_colours_and_follows_keys(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(
        "<!doctype html><meta name='color-scheme' content='light dark'><p>A word</p>"
        "<button onclick='document.title = \"pressed\"'>press</button>"
    )
    pictures = {}
    for dark in (False, True):
        page.open(file.as_uri(), 400, dark)
        page.picture(tmp_path / "page.png")
        pictures[dark] = (tmp_path / "page.png").read_bytes()
        assert page.run("matchMedia('(prefers-color-scheme: dark)').matches") is dark
    assert pictures[False] != pictures[True]
    assert page.run("innerWidth") == 400
    page.press("Tab")
    page.press("Enter")
    page.wait_for("document.title == 'pressed'")
