"""The page as a user starts it: a process of its own, with the image's packages, over a cluster of plain objects."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pytest
from runner.tests.integration.environments import environment
from runner.tests.runs.conftest import cluster, kubeconfig

__all__ = ["cluster", "kubeconfig"]

SOURCE = Path(__file__).parents[2] / "src"
_OPENER = build_opener(ProxyHandler({}))


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.rows: list[list[str]] = []
        self.links: dict[str, str] = {}
        self._href, self._in_cell = "", False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        assert tag not in ("script", "iframe", "object", "embed", "base", "img", "video"), tag
        assert not any(name == "style" or name.startswith("on") for name in told), told
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True
        self._href = told.get("href") or "" if tag == "a" else self._href

    def handle_endtag(self, tag: str) -> None:
        self._href = "" if tag == "a" else self._href
        self._in_cell = self._in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if text := " ".join(data.split()):
            self.words.append(text)
            if self._in_cell:
                self.rows[-1][-1] = f"{self.rows[-1][-1]} {text}".strip()
            if self._href:
                self.links[text] = self._href


@dataclass
class Answer:
    """What the page answers.

    Attributes:
        status: HTTP status.
        headers: headers, by their names in small letters.
        body: the body.
    """

    status: int
    headers: Mapping[str, str]
    body: str
    _parser: _Text | None = field(default=None, repr=False)

    @property
    def parsed(self) -> _Text:
        """The page, parsed; it fails on what could run or load something."""
        if self._parser is None:
            self._parser = _Text()
            self._parser.feed(self.body)
            assert "Traceback" not in self.body
        return self._parser

    @property
    def text(self) -> str:
        """Its words."""
        return " ".join(self.parsed.words)

    def row(self, name: str) -> list[str]:
        """Return the row of a table that begins with a name."""
        (found,) = [row for row in self.parsed.rows if row and row[0] == name]
        return found


class Started:
    """A running `stoker board`.

    Attributes:
        address: where it is, without a slash at the end.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stderr
        line = process.stderr.readline()
        found = re.search(r"the page is at (http://\S+)/$", line.strip())
        assert found, line + process.stderr.read()
        self.address = found[1]

    def get(self, path: str = "/", **headers: str) -> Answer:
        """Ask for a page."""
        return self.ask("GET", path, **headers)

    def ask(self, method: str, path: str, **headers: str) -> Answer:
        """Ask for a page by any method."""
        request = Request(self.address + path, method=method, headers=headers)
        try:
            with _OPENER.open(request, timeout=120) as answer:
                return Answer(answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read().decode())
        except HTTPError as error:
            return Answer(error.code, {k.lower(): v for k, v in error.headers.items()}, error.read().decode())

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Stop it, and return its exit code and what it has said since it began."""
        self._process.send_signal(number)
        _, said = self._process.communicate(timeout=120)
        return self._process.returncode, said


@pytest.fixture(scope="session")
def packages() -> Path:
    """The Python of the image's environment, without this runner."""
    return environment("board", "any", runner=False)


Start = Callable[..., Started]


@pytest.fixture
def start(packages: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts pages; they end with the test, and have said nothing of failures."""
    started: list[tuple[subprocess.Popen[str], bool]] = []

    def one(*options: str, quiet: bool = True, **env: str) -> Started:
        process = subprocess.Popen(
            [packages, "-m", "stoker", "board", "--port", "0", *options],
            env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(SOURCE), **env},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append((process, quiet))
        return Started(process)

    yield one
    for process, quiet in started:
        if process.poll() is None:
            process.terminate()
            _, said = process.communicate(timeout=120)
            assert not quiet or said == ""
