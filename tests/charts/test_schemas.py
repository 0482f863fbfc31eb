"""What the charts render is valid for every supported release of Kubernetes and Kubeflow Trainer, without a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from charts import trainer
from charts.helm import TRAINING_RUNTIMES, Manifest, output, run
from charts.runtimes import claims, jobs

KUBERNETES = ("1.31", "1.32", "1.33", "1.34", "1.35", "1.36")


def kubeconform(objects: list[Manifest], version: str, folder: Path) -> str:
    """Return what kubeconform finds wrong for a release of Trainer; an object without a schema is wrong, too."""
    file = folder / "objects.yaml"
    # JSON is YAML, and unlike PyYAML's own output leaves no doubt that "2e-4" is text.
    file.write_text("\n---\n".join(map(json.dumps, objects)))
    done = run("kubeconform", "-schema-location", trainer.schema_location(version), file)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("version", trainer.VERSIONS)
def test_runtimes_match_the_crds_of_trainer(catalogue: list[Manifest], version: str, tmp_path: Path) -> None:
    assert not kubeconform(catalogue, version, tmp_path)


@pytest.mark.parametrize("version", trainer.VERSIONS)
def test_a_field_that_trainer_does_not_know_is_found(catalogue: list[Manifest], version: str, tmp_path: Path) -> None:
    """Guards the test above: the schemas are closed."""
    catalogue[0]["spec"]["template"]["spec"]["failurePolicy"]["rules"][0]["onJobFailureWhim"] = ["none"]
    assert "'onJobFailureWhim' not allowed" in kubeconform(catalogue, version, tmp_path)


@pytest.mark.parametrize("version", KUBERNETES)
def test_jobs_and_claims_inside_match_kubernetes(catalogue: list[Manifest], version: str) -> None:
    for runtime in catalogue:
        for item in (*jobs(runtime), *claims(runtime)):
            try:
                kubernetes_validate.validate(item, version, strict=True)
            except jsonschema.ValidationError as error:
                pytest.fail(f"{runtime['metadata']['name']}: {item['kind']} at {error.json_path}: {error.message}")


@pytest.mark.parametrize("version", trainer.VERSIONS)
def test_the_trainjob_in_the_notes_is_valid(version: str, tmp_path: Path) -> None:
    notes = output("helm", "install", "catalogue", TRAINING_RUNTIMES, "--dry-run=client", "--set", "skipApiCheck=true")
    shown = notes.split("<<'EOF'\n")[1].split("EOF\n")[0]
    assert not kubeconform([yaml.safe_load(shown)], version, tmp_path)
