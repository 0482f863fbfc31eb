"""Without a way out: every image that any chart renders is in the lock, and all move with `global.imageRegistry`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from images.builder.catalogue import variants
from release.artifacts import Artifact, locked_images, registry
from release.artifacts import charts as published_charts

from charts.helm import CHARTS, render, templates, values_files
from charts.images import images, names_in_lock

MIRROR = "10.0.0.1:5000/mirror"


def all_values() -> list[object]:
    """Return every chart with every one of its values files, as parameters."""
    return [pytest.param(c, v, id=f"{c.name}-{v.stem}") for c in CHARTS for v in values_files(c)]


def chosen_by(values: Path) -> set[str]:
    """Return the repositories that a values file names: whoever names one has said where it comes from."""

    def repositories(value: object) -> set[str]:
        if isinstance(value, list):
            return {found for item in value for found in repositories(item)}
        if not isinstance(value, dict):
            return set()
        own = {str(value["repository"])} if value.get("repository") else set()
        return own | {found for item in value.values() for found in repositories(item)}

    return repositories(yaml.safe_load(values.read_text()))


def from_the_lock(found: set[str], values: Path) -> set[str]:
    """Return images without those that the values file names itself."""
    return {image for image in found if not any(image.startswith(name) for name in chosen_by(values))}


def locked(image_registry: str) -> set[str]:
    """Return every image of the lock as charts are to name it: below a registry, or where it is published."""
    return {(image.below(image_registry) if image_registry else image).reference for image in locked_images()}


@pytest.mark.parametrize(("chart", "values"), all_values())
def test_every_image_is_in_the_lock(chart: Path, values: Path) -> None:
    own = (yaml.safe_load(values.read_text()) or {}).get("global", {}).get("imageRegistry", "")
    assert from_the_lock(images(render(chart, [values])), values) <= locked(own)


@pytest.mark.parametrize(("chart", "values"), all_values())
def test_every_image_moves_to_where_the_mirror_list_puts_it(chart: Path, values: Path) -> None:
    rendered = render(chart, [values], [f'global.imageRegistry="{MIRROR}"'])
    assert from_the_lock(images(rendered), values) <= locked(MIRROR)


def test_every_chart_renders_an_image() -> None:
    """Guards the tests above: an image that is looked for in the wrong place would not be found missing."""
    for chart in CHARTS:
        assert names_in_lock(images(render(chart, [chart / "ci" / "default-values.yaml"])))


def test_an_image_is_found_wherever_a_pod_stands() -> None:
    pod = {
        "initContainers": [{"image": "a"}],
        "containers": [{"image": "b"}, {"name": "patched"}],
        "volumes": [{"image": {"reference": "c"}}, {"emptyDir": {}}],
    }
    job = {"spec": {"template": {"spec": pod}}}
    assert images([{"spec": {"replicatedJobs": [{"template": job}]}}]) == {"a", "b", "c"}


def test_no_chart_writes_what_the_lock_says() -> None:
    """Comments may: they show what the lock makes of something."""
    tags = {variant.tag for variant in variants()}
    for chart in CHARTS:
        values = re.sub(r"#.*", "", (chart / "values.yaml").read_text())
        for text in (*(path.read_text() for path in templates(chart)), values):
            assert registry() not in text
            assert not tags & set(re.split(r"[\s\"']+", text))


def test_charts_are_published_below_the_same_registry() -> None:
    for chart in published_charts():
        assert chart.artifact(registry()) == Artifact(f"ghcr.io/stoker-dev/charts/{chart.name}", chart.version)
