"""Runs as the report reads them, among them those whose texts would break a page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

# What a model or a user may write.
TEXTS = (
    "</pre><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></style><svg onload='alert(1)'>",
    "<!-- ]]> -->",
    "&amp; &lt; &#x3c;script&#x3e;",
    "$body ${title} $$",
    "\x00\x1b[31m\x07\x0b\x85\u202egnp.exe\u2066\ud800\ufffe",
    "javascript:alert(1)",
    "<" * 5000,
)


def write_run(folder: Path, lines: Iterable[Mapping[str, Any]], samples: Iterable[Mapping[str, Any]] = ()) -> Path:
    """Write a run's files, and return its output folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if found := [*samples]:
        (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in found))
    return folder


def group(step: int, prompt: str, *texts: str) -> dict[str, Any]:
    """Return a line of samples."""
    told = {"version": step - 1, "replica": "s", "rewards": [0.5], "finish": "stop"}
    samples = [{**told, "text": text} for text in texts]
    return {"step": step, "epoch": 0, "row": step, "prompt": prompt, "samples": samples}


_ACTIVE = ("a", "base", "embed", "form", "iframe", "image", "img", "link", "object", "script", "use", "video")


class _Elements(HTMLParser):
    """The elements of a page as a browser reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def titles(page: ElementTree.Element) -> list[str]:
    """Return the titles of a page's pictures."""
    return ["".join(caption.itertext()) for caption in page.iter("figcaption")]


def read_page(text: str) -> tuple[ElementTree.Element, list[tuple[str, dict[str, str | None]]]]:
    """Return a page as XML, which is stricter than HTML, and its elements; fail if it could load or run anything."""
    root = ElementTree.fromstring(text)
    parser = _Elements()
    parser.feed(text)
    parser.close()
    assert len(parser.found) == len([*root.iter()]), "HTML and XML disagree"
    for tag, attributes in parser.found:
        assert tag not in ("script", "img", "link", "iframe", "object", "embed", "base", "form", "a", "use", "image"), (
            tag
        )
        assert not {"href", "src", "srcset", "action", "style"} & attributes.keys(), attributes
        assert not any(name.startswith("on") for name in attributes), attributes
    (style,) = root.iter("style")
    assert "url(" not in (style.text or "")
    assert "@import" not in (style.text or "")
    return root, parser.found
