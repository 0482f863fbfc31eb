"""The version policy: any change of a published chart gives it a new version, a breaking one says how to upgrade."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from release import ROOT, changelog, packages, tools
from release.artifacts import Chart, read_chart

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?")


@dataclass(frozen=True)
class State:
    """A chart at one commit, as far as the policy looks at it.

    Attributes:
        version: its version.
        files: what its package holds.
        values: paths of the values that its schema names, such as `workspace.size`.
        objects: kind and name of everything it renders with ci/default-values.yaml.
    """

    version: str
    files: dict[str, bytes]
    values: frozenset[str]
    objects: frozenset[str]


def order(version: str) -> tuple[Any, ...]:
    """Return what versions are compared by; a pre-release comes before its release."""
    match = _VERSION.fullmatch(version)
    if match is None:
        raise ValueError(f"{version!r} is not a semantic version")
    major, minor, patch, pre = match.groups()
    parts = [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in pre.split(".")] if pre else []
    return (int(major), int(minor), int(patch), pre is None, parts)


def may_break(old: str, new: str) -> bool:
    """Return whether the step from one version to another announces a breaking change: a major, before 1.0 a minor."""
    (major, minor, *_), (new_major, new_minor, *_) = order(old), order(new)
    return bool(new_major > major or (new_major == major == 0 and new_minor > minor))


def findings(name: str, old: State, new: State, upgrading: str, breaking_news: bool) -> list[str]:
    """Return what a chart's change does against the policy.

    Args:
        name: the chart's.
        old: as it was published last.
        new: as it is now.
        upgrading: the text of UPGRADING.md.
        breaking_news: its changelog says that this version breaks something.
    """
    if new.version == old.version:
        changed = sorted(path for path in {*old.files, *new.files} if old.files.get(path) != new.files.get(path))
        if not changed:
            return []
        return [
            f"{name} {new.version} is published, and has changed since ({', '.join(changed)}): give it a new version"
        ]
    if order(new.version) < order(old.version):
        return [f"{name}: {new.version} is older than {old.version}, which is published"]
    removed = [f"value {value}" for value in sorted(old.values - new.values)]
    removed += [f"{thing}" for thing in sorted(old.objects - new.objects)]
    if not (removed or breaking_news or order(new.version)[0] > order(old.version)[0]):
        return []
    what = f"without {', '.join(removed)}" if removed else "as its changelog says"
    found = []
    if not may_break(old.version, new.version):
        found.append(f"{name} {new.version} breaks what works with {old.version} ({what}): give it a new major version")
    if not re.search(rf"^## {re.escape(name)} {re.escape(new.version)}$", upgrading, re.MULTILINE):
        found.append(f"UPGRADING.md has no section '## {name} {new.version}' that says what to do ({what})")
    return found


def last_published(name: str, root: Path = ROOT, except_for: str = "") -> str | None:
    """Return the newest version of a chart that has a tag `NAME-VERSION`; None if it was never published.

    Args:
        name: the chart's.
        root: the checkout.
        except_for: a tag that does not count: the one that publishes what is checked.
    """
    tags = _git(root, "tag", "--list", f"{name}-[0-9]*").splitlines()
    versions = [tag.removeprefix(f"{name}-") for tag in tags if tag != except_for]
    return max((version for version in versions if _VERSION.fullmatch(version)), key=order, default=None)


def check(chart: Chart, root: Path = ROOT, publishing: bool = False) -> list[str]:
    """Return what a chart of a checkout does against the policy, compared with its last published version.

    Args:
        chart: the chart.
        root: the checkout.
        publishing: its own tag was set to publish it, so it is compared with the version before.
    """
    last = last_published(chart.name, root, chart.tag if publishing else "")
    if last is None:
        return []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        archive = folder / "tag.tar"
        _git(root, "archive", f"--output={archive}", f"{chart.name}-{last}", "charts", "runtimes", "images")
        subprocess.run(["tar", "--extract", f"--file={archive}", f"--directory={folder}"], check=True)
        old = state(read_chart(folder / "charts" / chart.name))
    news = changelog.read(chart.folder)
    since = [section for section in news if order(section.version) > order(last)]
    breaking = any(
        change.kind == "removed" or change.description.startswith("**Breaking**")
        for section in since
        for change in section.changes
    )
    upgrading = (root / "UPGRADING.md").read_text(encoding="utf-8")
    return findings(chart.name, old, state(chart), upgrading, breaking)


def state(chart: Chart) -> State:
    """Return what the policy looks at of a chart."""
    with tempfile.TemporaryDirectory() as folder:
        tools.run("helm", "package", chart.folder, "--destination", folder)
        files = packages.content(Path(folder) / f"{chart.name}-{chart.version}.tgz")
    values = chart.folder / "ci" / "default-values.yaml"
    rendered = tools.run("helm", "template", chart.name, chart.folder, "--values", values, "--set", "skipApiCheck=true")
    things = [thing for thing in yaml.load_all(rendered, yaml.CSafeLoader) if thing]
    return State(
        chart.version,
        files,
        frozenset(_values(json.loads(files["values.schema.json"]))),
        frozenset(f"{thing['kind']} {thing['metadata']['name']}" for thing in things),
    )


def _values(schema: dict[str, Any], above: str = "") -> list[str]:
    found = []
    for name, below in schema.get("properties", {}).items():
        found += [f"{above}{name}", *_values(below, f"{above}{name}.")]
    return found


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout
