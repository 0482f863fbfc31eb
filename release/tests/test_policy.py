"""The version policy, on charts in a Git repository of their own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from release import ROOT
from release.artifacts import charts, read_chart
from release.policy import State, check, findings, last_published, may_break, order

OLD = State("0.1.0", {"a": b"1"}, frozenset({"size", "size.max"}), frozenset({"ClusterTrainingRuntime one"}))


def judge(new: State, upgrading: str = "", breaking_news: bool = False) -> list[str]:
    return findings("some", OLD, new, upgrading, breaking_news)


def test_what_is_published_and_unchanged_is_fine() -> None:
    assert judge(OLD) == []


def test_any_change_needs_a_new_version() -> None:
    (found,) = judge(State("0.1.0", {"a": b"2", "b": b""}, OLD.values, OLD.objects))
    assert found == "some 0.1.0 is published, and has changed since (a, b): give it a new version"


def test_a_new_version_may_add() -> None:
    assert judge(State("0.1.1", {}, OLD.values | {"more"}, OLD.objects | {"ClusterTrainingRuntime two"})) == []


def test_versions_do_not_go_back() -> None:
    assert judge(State("0.1.0-rc.1", {}, OLD.values, OLD.objects)) == [
        "some: 0.1.0-rc.1 is older than 0.1.0, which is published"
    ]


def test_a_value_or_a_runtime_that_goes_is_a_breaking_change() -> None:
    major, section = judge(State("0.1.1", {}, frozenset({"size"}), frozenset()))
    assert "some 0.1.1 breaks what works with 0.1.0 (without value size.max, ClusterTrainingRuntime one)" in major
    assert section.startswith("UPGRADING.md has no section '## some 0.2.0'".replace("0.2.0", "0.1.1"))


def test_a_breaking_change_with_its_version_and_section_is_fine() -> None:
    new = State("0.2.0", {}, frozenset({"size"}), frozenset())
    assert judge(new, "# Upgrading\n\n## some 0.2.0\n\nDo this.\n") == []
    assert len(judge(new, "## other 0.2.0\n")) == 1


def test_what_the_changelog_calls_breaking_is() -> None:
    assert len(judge(State("0.1.1", {}, OLD.values, OLD.objects), breaking_news=True)) == 2


def test_a_new_major_version_always_has_a_section() -> None:
    (found,) = judge(State("1.0.0", {}, OLD.values, OLD.objects))
    assert "no section '## some 1.0.0'" in found


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [("0.1.0", "0.1.1", False), ("0.1.0", "0.2.0", True), ("1.1.0", "1.2.0", False), ("1.9.9", "2.0.0", True)],
)
def test_a_major_version_may_break_and_before_1_0_a_minor_one(old: str, new: str, expected: bool) -> None:
    assert may_break(old, new) is expected


def test_versions_are_ordered_as_semver_says() -> None:
    versions = [
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-beta.2",
        "1.0.0-beta.11",
        "1.0.0-rc.1",
        "1.0.0",
        "1.0.1",
        "1.10.0",
    ]
    assert sorted(sorted(versions), key=order) == versions


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with this one's charts, whose catalogue is published as it is."""
    for name in ("charts", "runtimes", "images"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
    (tmp_path / "UPGRADING.md").write_text("# Upgrading\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=test", "-c", "user.email=test@example.com"]
    version = read_chart(tmp_path / "charts/training-runtimes").version
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"], ["tag", f"training-runtimes-{version}"]):
        subprocess.run([*git, *words], check=True)
    return tmp_path


def findings_in(checkout: Path) -> list[str]:
    return check(read_chart(checkout / "charts/training-runtimes"), checkout)


def test_a_change_of_what_a_chart_links_to_is_a_change_of_the_chart(checkout: Path) -> None:
    assert findings_in(checkout) == []
    lock = checkout / "images/images.lock.yaml"
    lock.write_text(f"{lock.read_text()}# changed\n")
    (checkout / "charts/training-runtimes/tests/new_test.yaml").write_text("# not in the package\n")
    (found,) = findings_in(checkout)
    assert "has changed since (files/images.lock.yaml): give it a new version" in found


@pytest.mark.full
def test_a_change_of_the_library_is_a_change_of_every_chart(checkout: Path) -> None:
    helper = checkout / "charts/common/templates/_labels.tpl"
    helper.write_text(f"{helper.read_text()}{{{{/* changed */}}}}\n")
    (found,) = findings_in(checkout)
    assert "has changed since (charts/common/templates/_labels.tpl): give it a new version" in found


def test_the_tag_that_publishes_a_chart_is_not_what_it_is_compared_with(checkout: Path) -> None:
    chart = read_chart(checkout / "charts/training-runtimes")
    values = chart.folder / "values.yaml"
    values.write_text(f"{values.read_text()}# changed\n")
    assert len(check(chart, checkout)) == 1
    assert check(chart, checkout, publishing=True) == []


def test_the_newest_tag_of_the_chart_counts(checkout: Path) -> None:
    for tag in ("training-runtimes-0.0.9", "training-runtimes-0.1.0-rc.1", "other-9.0.0", "training-runtimes-next"):
        subprocess.run(["git", "-C", checkout, "tag", tag], check=True)
    chart = read_chart(checkout / "charts/training-runtimes")
    assert last_published(chart.name, checkout) == chart.version
    assert last_published("never", checkout) is None


@pytest.mark.parametrize("chart", charts(), ids=lambda chart: str(chart.name))
def test_the_charts_of_this_repository_keep_to_it(chart: object) -> None:
    assert check(chart) == []  # type: ignore[arg-type]
