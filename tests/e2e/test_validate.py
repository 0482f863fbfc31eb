"""`stoker validate` and the cluster's own admission say the same of a TrainJob."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from images.builder.catalogue import variants
from packaging.utils import canonicalize_name

from builders import RUNTIME, container_patch, kept, trainjob
from e2e.conftest import ROOT
from e2e.kube import Kube
from e2e.trainjobs import Reader
from stoker.cluster.images import packages_of
from stoker.contract.exits import ExitCode

NAME = "validated"
_INSTALLED = "import importlib.metadata as m; print(*(d.metadata['Name'] for d in m.distributions()))"


@pytest.fixture(scope="module")
def runtime(kube: Kube) -> str:
    """The CPU runtime as one of the namespace's own, so that it is found there and nowhere else."""
    manifest = kept(RUNTIME)
    manifest["kind"] = "TrainingRuntime"
    manifest["metadata"] = {"name": NAME, "namespace": kube.namespace, "labels": manifest["metadata"]["labels"]}
    kube.apply(manifest)
    return NAME


def changed(spec: Mapping[str, Any], name: str = "first") -> dict[str, Any]:
    """Return a TrainJob on the runtime with some fields of its spec set."""
    return trainjob(name, runtime=NAME, kind="TrainingRuntime", spec=spec, numNodes=2)


ADMITTED = {
    "plain": changed({}),
    "a variable": changed({"trainer": {"env": [{"name": "STOKER_ARG_MAX_STEPS", "value": "3"}]}}),
    "a field of the pod": changed(
        {"trainer": {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}}
    ),
    "fields that are null": changed({"trainer": {"numNodes": None, "env": None}, "runtimePatches": None}),
    "a whole number with a point": changed({"trainer": {"numNodes": 2.0}}),
    "a quantity with a point": changed({"trainer": {"resourcesPerNode": {"requests": {"cpu": 1.0}}}}),
    "a mount": changed(container_patch(name="node", volumeMounts=[])),
}
REFUSED = {
    "PET_NNODES": changed({"trainer": {"env": [{"name": "PET_NNODES", "value": "3"}]}}),
    "an unknown field": changed({"trainer": {"numNode": 3}}),
    "a number for a word": changed({"trainer": {"args": ["--max_steps", 3]}}),
    "text for a number": changed({"trainer": {"numNodes": "2"}}),
    "text for a list": changed({"trainer": {"args": "--max_steps 3"}}),
    "a list for a mapping": changed({"trainer": []}),
    "a variable twice": changed({"trainer": {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}}),
    "a variable without a name": changed({"trainer": {"env": [{"value": "1"}]}}),
    "no quantity": changed({"trainer": {"resourcesPerNode": {"limits": {"memory": "2GB"}}}}),
    "half a CPU as a number": changed({"trainer": {"resourcesPerNode": {"limits": {"cpu": 0.5}}}}),
    "resources without limits": changed({"trainer": {"resourcesPerNode": {"cpu": 1}}}),
    "no time at all": changed({"activeDeadlineSeconds": 0}),
    "a manager that is none": changed({"managedBy": "example.com/me"}),
    "another group's runtime": changed({"runtimeRef": {"name": NAME, "kind": "TrainingRuntime", "apiGroup": "a.b"}}),
    "no scheme": changed({"initializer": {"model": {"storageUri": "owner/name"}}}),
    "no such initializer": changed({"initializer": {"model": {"storageUri": "hf://owner/name"}}}),
    "env in a patch": changed(container_patch(name="node", env=[{"name": "A", "value": "1"}])),
    "tune run where no name spells a model": changed({"trainer": {"command": ["tune", "run"], "args": ["epochs=1"]}}),
    "a capital letter": changed({}, name="First"),
}
# What Trainer takes and JobSet does not: the TrainJob is there, and nothing ever starts.
STUCK = {
    "a patch of no container": changed(container_patch(name="other"), name="no-container"),
    "a patch of no job": changed(container_patch("other", name="node"), name="no-job"),
    "less than the runtime asks for": changed(
        {"trainer": {"resourcesPerNode": {"limits": {"memory": "1Gi"}}}}, name="no-room"
    ),
}


def verdict(kube: Kube, job: Mapping[str, Any], folder: Path) -> int:
    """Return the exit code of `stoker validate`, which reads the runtime from the cluster."""
    path = folder / "trainjob.yaml"
    path.write_text(yaml.safe_dump({**job, "metadata": {**job["metadata"], "namespace": kube.namespace}}))
    source = f"PYTHONPATH={ROOT / 'runner/src'}"
    done = kube.cluster.run(
        ["env", source, sys.executable, "-m", "stoker", "validate", str(path)], check=False, capture_output=True
    )
    assert done.stderr or done.returncode == 0
    assert "Traceback" not in done.stderr
    return int(done.returncode)


def test_the_image_has_the_packages_that_validate_knows_of_it(reader: Reader) -> None:
    (released,) = (variant for variant in variants() if variant.target == "trl-cpu")
    known = packages_of(released.reference)
    installed = {canonicalize_name(name) for name in reader.run(["python", "-c", _INSTALLED], []).split()}
    assert known is not None
    assert {*known} == installed - {"stoker"}


@pytest.mark.parametrize("case", [*ADMITTED, *REFUSED])
def test_validate_and_the_cluster_agree(kube: Kube, runtime: str, tmp_path: Path, case: str) -> None:
    job = {**ADMITTED, **REFUSED}[case]
    asked = kube.kubectl(
        "create", "--dry-run=server", "--validate=strict", "-f", "-", check=False, stdin=yaml.safe_dump(job)
    )
    assert (asked.returncode == 0) == (case in ADMITTED), asked.stderr
    assert (verdict(kube, job, tmp_path) == 0) == (case in ADMITTED)


@pytest.mark.parametrize("case", STUCK)
def test_what_would_only_show_as_an_event_is_refused_by_validate(
    kube: Kube, runtime: str, tmp_path: Path, case: str
) -> None:
    job = STUCK[case]
    name = job["metadata"]["name"]
    kube.create(job)
    try:
        kube.until(
            f"an event of the JobSet {name}",
            lambda: (
                kube.kubectl(
                    "get",
                    "events",
                    "--field-selector",
                    f"involvedObject.name={name},reason=JobCreationFailed",
                    "-o",
                    "name",
                ).stdout
            ),
            300,
        )
        assert not kube.items("pods", f"jobset.sigs.k8s.io/jobset-name={name}")
    finally:
        kube.delete("trainjob", name)
    assert verdict(kube, job, tmp_path) == ExitCode.USAGE
