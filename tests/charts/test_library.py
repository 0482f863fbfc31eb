"""The library chart: every chart holds it, from the checkout and from its package, with nothing to fetch."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import pytest
import yaml

from charts.helm import CHARTS, LIBRARY, manifests, output, render, run, template, template_arguments

HELPERS = {name for path in LIBRARY.rglob("*.tpl") for name in re.findall(r'define "([^"]+)"', path.read_text())}


def defaults(chart: Path) -> Path:
    """Return the values that a chart needs at least."""
    return chart / "ci" / "default-values.yaml"


def packaged(chart: Path, folder: Path) -> Path:
    """Package a chart and return the archive."""
    version = yaml.safe_load((chart / "Chart.yaml").read_text())["version"]
    output("helm", "package", chart, "--destination", folder)
    return folder / f"{chart.name}-{version}.tgz"


def test_a_package_holds_the_library_and_renders_as_the_checkout_does(chart: Path, tmp_path: Path) -> None:
    with tarfile.open(packaged(chart, tmp_path)) as archive:
        archive.extractall(tmp_path, filter="data")
    held = tmp_path / chart.name / "charts" / LIBRARY.name
    templates = [path.relative_to(LIBRARY) for path in (LIBRARY / "templates").iterdir()]
    assert sorted(path.relative_to(held) for path in held.rglob("*.tpl")) == sorted(templates)
    assert all((held / path).read_bytes() == (LIBRARY / path).read_bytes() for path in templates)
    assert template(tmp_path / chart.name, [defaults(chart)]) == template(chart, [defaults(chart)])


def test_helm_finds_every_dependency_without_a_registry(chart: Path) -> None:
    listed = output("helm", "dependency", "list", chart).splitlines()[1:]
    assert [line.split()[::2] for line in listed if line.strip()] == [[LIBRARY.name, "unpacked"]]


def test_a_value_for_the_library_is_refused(chart: Path) -> None:
    """It takes none; the schema lets through no more of that name than Helm adds itself."""
    done = run("helm", *template_arguments(chart, [defaults(chart)], [f'{LIBRARY.name}.image="mine"']))
    assert done.returncode != 0
    assert f"at '/{LIBRARY.name}': additional properties 'image' not allowed" in done.stderr


def test_charts_below_one_parent_share_the_library(tmp_path: Path) -> None:
    """Helm keeps one helper of each name, whichever chart it is from."""
    (tmp_path / "charts").mkdir()
    values = {}
    for chart in CHARTS:
        packaged(chart, tmp_path / "charts")
        values[chart.name] = {**yaml.safe_load(defaults(chart).read_text()), "skipApiCheck": True}
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: platform, version: 0.1.0}")
    (tmp_path / "values.yaml").write_text(json.dumps({**values, "global": {"imageRegistry": "registry.example.com"}}))
    together = manifests(output("helm", "template", "one", tmp_path, "--namespace", "default"))
    alone = [
        item
        for chart in CHARTS
        for item in render(chart, [defaults(chart)], ['global.imageRegistry="registry.example.com"'])
    ]
    assert sorted(item["kind"] for item in together) == sorted(item["kind"] for item in alone)
    charts = {item["metadata"]["labels"]["helm.sh/chart"].rpartition("-")[0] for item in together}
    assert charts == {chart.name for chart in CHARTS}


@pytest.mark.parametrize("helper", sorted(HELPERS))
def test_a_helper_begins_with_the_projects_name_and_serves_two(helper: str) -> None:
    """Another library below the same parent may be called `common` too; and what one chart needs lies in that chart."""
    assert helper.startswith("stoker.")
    call = f'include "{helper}"'
    users = [
        chart.name for chart in CHARTS if any(call in path.read_text() for path in (chart / "templates").rglob("*.*"))
    ]
    in_library = any(call in path.read_text() for path in LIBRARY.rglob("*.tpl"))
    assert in_library or len(users) >= 2
