"""The documentation site: its links lead somewhere, it loads nothing from elsewhere, versions have folders."""

from __future__ import annotations

import functools
import importlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from release import ROOT, site
from release.artifacts import chart
from release.errors import ReleaseError

from browser.debian import NoChromiumError
from browser.page import browsing

INDEX = (ROOT / site.INDEX).read_text()
# Where the browser itself loads from, besides `a`, which a reader may follow.
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "use": "href"}


@dataclass
class Page(HTMLParser):
    """What a page of the site names.

    Attributes:
        anchors: its anchors.
        links: what a reader may follow.
        loads: what the browser loads.
    """

    anchors: set[str] = field(default_factory=set)
    links: set[str] = field(default_factory=set)
    loads: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        self.anchors |= {told[name] for name in ("id", "name") if name in told}
        if tag == "a" and "href" in told:
            self.links.add(told["href"])
        if told.get(LOADS.get(tag, "")) and told.get("rel") not in ("canonical", "prev", "next"):
            self.loads.add(told[LOADS[tag]])


def leaves(nav: list[dict[str, Any]]) -> Iterator[str]:
    for entry in nav:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else leaves(value)


def test_every_document_is_in_the_navigation() -> None:
    listed = [*leaves(site.navigation(INDEX))]
    documents = {path for path in site.sources() if path.parts[0] == "docs" and path.suffix == ".md"}
    missing = {str(site.page_of(path)) for path in documents} - {*listed}
    assert not missing, "add a row to docs/README.md"
    assert len(listed) == len({*listed}), "a page stands in the navigation once"


def test_the_navigation_has_the_kinds_of_pages() -> None:
    titles = [title for entry in site.navigation(INDEX) for title in entry]
    assert titles == ["Documentation", "Quickstart", "Guides", "Concepts", "Reference", "For contributors"]


@pytest.mark.parametrize(
    ("link", "moved"),
    [
        ("../../README.md#when-a-run-ends", "../quickstart.md#when-a-run-ends"),
        ("serving.md", "serving.md"),
        ("#above", "#above"),
        ("https://example.com/a.md", "https://example.com/a.md"),
        ("../../charts/vllm-serving/README.md", "../charts/vllm-serving/README.md"),
        ("../../runtimes", f"{site.HOME}/tree/v1/runtimes"),
        ("../../images/images.lock.yaml", f"{site.HOME}/blob/v1/images/images.lock.yaml"),
    ],
)
def test_links_lead_to_the_page_or_to_the_repository(link: str, moved: str) -> None:
    text = f"[a]({link}) and\n```sh\n[b]({link})\n```\n"
    found = site.page(text, PurePosixPath("docs/guides/airgap.md"), site.sources(), "v1")
    assert found == f"[a]({moved}) and\n```sh\n[b]({link})\n```\n"


def test_a_page_has_no_badges_and_alerts_of_others() -> None:
    text = "![Version: 1](https://img.example.com/a?b) ![own](images/a.png)\n\n> [!NOTE]\n> Read.\n"
    found = site.page(text, PurePosixPath("docs/a.md"), [PurePosixPath("docs/images/a.png")], "v1")
    assert found == "Version: 1 ![own](images/a.png)\n\n> **Note.**\n> Read.\n"


def test_versions_are_listed_newest_first(tmp_path: Path) -> None:
    for name in ("vllm-serving-0.1.0", "training-runtimes-0.9.0", "training-runtimes-0.10.0", "assets"):
        (tmp_path / name).mkdir()
    site.write_versions(tmp_path)
    listed = [item["version"] for item in json.loads((tmp_path / "versions.json").read_text())]
    assert listed == ["training-runtimes-0.10.0", "training-runtimes-0.9.0", "vllm-serving-0.1.0"]
    assert 'url=training-runtimes-0.10.0/"' in (tmp_path / "index.html").read_text()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of the catalogue's version."""
    return site.build(chart("training-runtimes"), tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def pages(built: Path) -> dict[Path, Page]:
    """Every page of the site by its path."""
    found = {}
    for path in built.rglob("*.html"):
        found[path] = Page()
        found[path].feed(path.read_text())
    return found


@pytest.mark.full
def test_every_link_leads_somewhere(built: Path, pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are those of a server
            continue
        for link in page.links | page.loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() and target.parent != built.parent:
                broken.append(f"{path.relative_to(built)}: {link}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                broken.append(f"{path.relative_to(built)}: {link}: no such place")
    assert not broken, "\n".join(sorted(broken)[:30])


@pytest.mark.full
def test_nothing_is_loaded_from_elsewhere(built: Path, pages: dict[Path, Page]) -> None:
    assert {load for page in pages.values() for load in page.loads if urlsplit(load).netloc} == set()
    styles = "".join(path.read_text() for path in built.rglob("*.css"))
    assert "url(http" not in styles
    assert "url(//" not in styles
    # The theme would fetch a program for diagrams.
    for path, page in pages.items():
        if 'class="mermaid"' in path.read_text():
            assert [load for load in page.loads if load.endswith(site.DIAGRAMS.name)], path


@pytest.mark.full
def test_pages_and_public_names_can_be_searched(built: Path, pages: dict[Path, Page]) -> None:
    places = {entry["location"] for entry in json.loads((built / "search" / "search_index.json").read_text())["docs"]}
    assert {"guides/kueue/", "concepts/runner/", "reference/exit-codes/", "quickstart/"} <= places
    for face in site.FACES:
        page = pages[built / "api" / face / "index.html"]
        names = {f"{face}.{name}" for name in importlib.import_module(face).__all__}
        assert names <= page.anchors, face
        assert {f"api/{face}/#{name}" for name in names} <= places


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def address(built: Path) -> Iterator[str]:
    """Where the site is served, as a browser that searches needs it."""
    site.write_versions(built.parent)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=built.parent))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/{built.name}/"
    server.shutdown()
    server.server_close()


@pytest.mark.full  # fetches Chromium
@pytest.mark.parametrize("width", [360, 1280])
def test_a_browser_finds_a_page_by_its_words_and_asks_nobody_else(address: str, width: int) -> None:
    try:
        with browsing() as page:
            page.open(address, width)
            page.run("document.querySelector('[data-md-toggle=search]').click()")
            page.run("document.querySelector('[data-md-component=search-query]').focus()")
            page.type("quota of a team in Kueue")
            page.wait_for("document.querySelector('.md-search-result__item a[href*=\"guides/kueue\"]')")
            page.run("document.querySelector('.md-search-result__item a[href*=\"guides/kueue\"]').click()")
            page.wait_for("location.pathname.includes('/guides/kueue/') && document.readyState === 'complete'")
            assert page.run("document.querySelector('h1').textContent").strip()
            assert page.run("document.documentElement.scrollWidth") <= width
            assert page.console == []
            assert {urlsplit(asked).netloc for asked in page.requests} == {urlsplit(address).netloc}
    except NoChromiumError as error:
        pytest.skip(str(error))


@pytest.mark.full  # fetches Chromium
@pytest.mark.parametrize("place", ["quickstart/", "concepts/asynchronous-rl/"])
def test_a_browser_draws_the_diagrams_and_asks_nobody_else(address: str, place: str) -> None:
    try:
        with browsing() as page:
            page.open(address + place, 1280)
            # The theme hides the drawing from scripts, in a shadow of its element.
            page.wait_for("document.querySelector('div.mermaid')?.getBoundingClientRect().height > 100")
            assert page.console == []
            assert {urlsplit(asked).netloc for asked in page.requests} == {urlsplit(address).netloc}
    except NoChromiumError as error:
        pytest.skip(str(error))


@pytest.mark.full
def test_a_broken_link_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stage(folder: Path, *_: object) -> None:
        written(folder, "main")
        (folder / "guides" / "serving.md").write_text("# Serving\n\n[Nowhere](nowhere.md)\n")

    written = site.stage
    monkeypatch.setattr(site, "stage", stage)
    with pytest.raises(ReleaseError, match=r"nowhere\.md"):
        site.build(chart("training-runtimes"), tmp_path)
