"""What the charts render is valid for every supported release of Kubernetes and Kubeflow Trainer, without a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from charts import crds, kubernetes, trainer
from charts.api_groups import CUSTOM, group
from charts.helm import CHARTS, TRAINING_RUNTIMES, Manifest, output, render, run, values_files
from charts.runtimes import KINDS, claims, jobs

KUBERNETES = [
    "1.31",
    *(pytest.param(version, marks=pytest.mark.full) for version in ("1.32", "1.33", "1.34", "1.35")),
    "1.36",
]
"""The supported releases; what the oldest and the newest take, those between seldom refuse."""

SINCE = {"resource.k8s.io/v1": "1.34"}
"""Where an API is younger than the oldest release that the charts support."""


def kubeconform(objects: list[Manifest], locations: list[str], folder: Path) -> str:
    """Return what kubeconform finds wrong by the schemas at `locations`; an object without a schema is wrong, too."""
    file = folder / "objects.yaml"
    # JSON is YAML, and unlike PyYAML's own output leaves no doubt that "2e-4" is text.
    file.write_text("\n---\n".join(map(json.dumps, objects)))
    done = run("kubeconform", *(f"-schema-location={location}" for location in locations), file)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.fixture(
    scope="module",
    params=[(chart, values) for chart in CHARTS for values in values_files(chart)],
    ids=lambda case: f"{case[0].name}-{case[1].stem}",
)
def rendered(request: pytest.FixtureRequest) -> list[Manifest]:
    """The objects of each chart for each of its values files."""
    chart, values = request.param
    return render(chart, [values])


@pytest.mark.parametrize("version", KUBERNETES)
def test_objects_match_kubernetes(rendered: list[Manifest], version: str) -> None:
    for item in rendered:
        newer = SINCE.get(item["apiVersion"], version) > version
        if item["kind"] not in KINDS and group(item) not in CUSTOM and not newer:
            validate(item, version)


def test_objects_of_other_controllers_match_their_crds(rendered: list[Manifest], tmp_path: Path) -> None:
    custom = [item for item in rendered if group(item) in CUSTOM]
    locations = [crds.schema_location(CUSTOM[name]) for name in sorted({group(item) for item in custom})]
    assert not custom or not kubeconform(custom, locations, tmp_path)


def validate(item: Manifest, version: str) -> None:
    """Check an object against the schemas of a release of Kubernetes, unknown fields included."""
    try:
        kubernetes.schema(item["kind"], item["apiVersion"], version).validate(item)
    except jsonschema.ValidationError as error:
        pytest.fail(f"{item['kind']} {item['metadata'].get('name')} at {error.json_path}: {error.message}")


@pytest.mark.parametrize("version", trainer.VERSIONS)
def test_runtimes_match_the_crds_of_trainer(catalogue: list[Manifest], version: str, tmp_path: Path) -> None:
    assert not kubeconform(catalogue, [trainer.schema_location(version)], tmp_path)


@pytest.mark.parametrize("version", trainer.VERSIONS)
def test_a_field_that_trainer_does_not_know_is_found(catalogue: list[Manifest], version: str, tmp_path: Path) -> None:
    """Guards the test above: the schemas are closed."""
    catalogue[0]["spec"]["template"]["spec"]["failurePolicy"]["rules"][0]["onJobFailureWhim"] = ["none"]
    assert "'onJobFailureWhim' not allowed" in kubeconform(catalogue, [trainer.schema_location(version)], tmp_path)


@pytest.mark.parametrize("version", KUBERNETES)
def test_jobs_and_claims_inside_match_kubernetes(catalogue: list[Manifest], version: str) -> None:
    for runtime in catalogue:
        for item in (*jobs(runtime), *claims(runtime)):
            validate(item, version)


@pytest.mark.parametrize("version", trainer.VERSIONS)
def test_the_trainjob_in_the_notes_is_valid(version: str, tmp_path: Path) -> None:
    notes = output("helm", "install", "catalogue", TRAINING_RUNTIMES, "--dry-run=client", "--set", "skipApiCheck=true")
    shown = notes.split("<<'EOF'\n")[1].split("EOF\n")[0]
    assert not kubeconform([yaml.safe_load(shown)], [trainer.schema_location(version)], tmp_path)
