"""Changelogs are read as they are written, and are what Artifact Hub is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from release import ROOT
from release.artifacthub import with_changes, with_images, with_pictures
from release.artifacts import Chart, charts, read_chart
from release.changelog import Change, read, sections
from release.errors import ReleaseError

TEXT = """# Changelog

Words.

## 0.2.0

### Changed

- **Breaking** `a` is named `b`, which is
  longer: see UPGRADING.
- One more

### Fixed

- Something

## 0.1.0

### Added

- All
"""
CHART = """name: some
version: 0.2.0
annotations:
  artifacthub.io/license: Apache-2.0
  artifacthub.io/changes: |
    - kind: added
      description: Old
  artifacthub.io/images: |
    []
"""


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    (tmp_path / "Chart.yaml").write_text(CHART)
    (tmp_path / "CHANGELOG.md").write_text(TEXT)
    return tmp_path


@pytest.fixture(params=charts(), ids=lambda chart: str(chart.name))
def own(request: pytest.FixtureRequest) -> Chart:
    found: Chart = request.param
    return found


def test_sections_have_their_changes_in_order() -> None:
    newest, first = sections(TEXT)
    assert newest.changes == (
        Change("changed", "**Breaking** `a` is named `b`, which is longer: see UPGRADING."),
        Change("changed", "One more"),
        Change("fixed", "Something"),
    )
    assert (first.version, first.text) == ("0.1.0", "### Added\n\n- All")


@pytest.mark.parametrize(
    ("text", "message"),
    [("## 1.0.0\n\n### News\n\n- a\n", "no heading 'News', but: Added, Changed"), ("## 1.0.0\n", "no change: write")],
)
def test_a_changelog_that_artifact_hub_could_not_show_is_refused(text: str, message: str) -> None:
    with pytest.raises(ReleaseError, match=message):
        sections(text)


def test_changes_of_the_charts_version_become_its_annotation(chart: Path) -> None:
    written = yaml.safe_load(with_changes(CHART, chart))["annotations"]
    kinds = [change["kind"] for change in yaml.safe_load(written["artifacthub.io/changes"])]
    assert kinds == ["changed", "changed", "fixed"]
    assert written["artifacthub.io/license"] == "Apache-2.0"


def test_a_version_without_a_section_of_its_own_is_refused(chart: Path) -> None:
    (chart / "Chart.yaml").write_text(CHART.replace("0.2.0", "0.3.0"))
    with pytest.raises(ReleaseError, match=r"begins with 0\.2\.0, Chart\.yaml has 0\.3\.0: add '## 0\.3\.0'"):
        with_changes(CHART, chart)


def test_a_chart_without_a_changelog_is_told_to_write_one(chart: Path) -> None:
    (chart / "CHANGELOG.md").unlink()
    with pytest.raises(ReleaseError, match=r"CHANGELOG\.md: no '## VERSION' with '### Added'"):
        with_changes(CHART, chart)


def test_images_are_listed_by_digest_where_it_is_known(tmp_path: Path) -> None:
    lock = tmp_path / "lock.yaml"
    digest = f"sha256:{'a' * 64}"
    variants = {"cuda": {"tag": "1-cuda", "digest": digest}, "cpu": {"tag": "1-cpu", "digest": None}}
    images = {name: {"version": "1", "variants": variants} for name in ("trl", "other")}
    lock.write_text(yaml.safe_dump({"registry": "example.com/team", "images": images}, sort_keys=False))
    listed = yaml.safe_load(yaml.safe_load(with_images(CHART, {"trl"}, lock))["annotations"]["artifacthub.io/images"])
    assert listed == [
        {"name": "trl-cuda", "image": f"example.com/team/trl:1-cuda@{digest}"},
        {"name": "trl-cpu", "image": "example.com/team/trl:1-cpu"},
    ]


def test_a_chart_without_the_annotation_is_refused() -> None:
    with pytest.raises(ReleaseError, match=r"needs one line 'artifacthub\.io/images: \|'"):
        with_images("name: some\n", {"trl"})


def test_the_changelog_of_every_chart_is_about_its_version(own: Chart) -> None:
    newest, *_ = read(own.folder)
    assert newest.version == own.version


def test_pictures_are_those_of_the_charts_own_tag(chart: Path, tmp_path: Path) -> None:
    (tmp_path / "docs" / "images").mkdir(parents=True)
    for name in ("icon.svg", "report.png", "other.png"):
        (tmp_path / "docs" / "images" / name).touch()
    text = CHART.replace("annotations:\n", "icon: https://example.com\nannotations:\n  artifacthub.io/screenshots: |\n")
    written = yaml.safe_load(with_pictures(text, read_chart(chart), tmp_path))
    raw = "https://raw.githubusercontent.com/stoker-dev/stoker/some-0.2.0/docs/images"
    assert written["icon"] == f"{raw}/icon.svg"
    shown = yaml.safe_load(written["annotations"]["artifacthub.io/screenshots"])
    assert [picture["url"] for picture in shown] == [f"{raw}/report.png"]
    with pytest.raises(ReleaseError, match="needs one line 'icon: URL'"):
        with_pictures(CHART, read_chart(chart), tmp_path)


def test_every_picture_that_a_chart_names_is_there(own: Chart) -> None:
    facts = yaml.safe_load((own.folder / "Chart.yaml").read_text())
    named = [facts["icon"]]
    named += [picture["url"] for picture in yaml.safe_load(facts["annotations"]["artifacthub.io/screenshots"])]
    for url in named:
        assert (ROOT / url.partition(f"/{own.tag}/")[2]).is_file(), url
