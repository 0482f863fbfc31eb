"""Generated files in the repository are what their generator makes now."""

from __future__ import annotations

from pathlib import Path

import pytest

from charts import generate
from charts.helm import ROOT

ADVICE = "run `make generate`, look at the difference, and commit it"


@pytest.fixture(scope="module")
def content() -> dict[Path, str]:
    return generate.files()


def test_generated_files_are_up_to_date(content: dict[Path, str]) -> None:
    stale = [path for path, text in content.items() if not path.exists() or path.read_text() != text]
    assert not stale, f"{', '.join(str(path.relative_to(ROOT)) for path in stale)}: {ADVICE}"


def test_no_rendered_file_is_left_over(content: dict[Path, str]) -> None:
    assert generate.leftovers(content) == [], ADVICE
