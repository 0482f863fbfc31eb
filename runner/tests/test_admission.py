"""What Trainer and JobSet would refuse is told before anything is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest
from kubeflow_trainer_api import models
from pydantic import BaseModel
from runner.tests.test_trainjob import RUNTIME, container, paths, trainjob

from stoker.admission import FIELDS, admission_of


def manifest(name: str = "sft", spec: Mapping[str, Any] | None = None, **trainer: Any) -> dict[str, Any]:
    job = {"apiVersion": "trainer.kubeflow.org/v1alpha1", **trainjob(**trainer)}
    job["metadata"] = {"name": name}
    job["spec"].update(spec or {})
    return job


def patch(**job: Any) -> dict[str, Any]:
    spec = {"replicatedJobs": [{"name": "node", **job}]}
    return {"runtimePatches": [{"manager": "a.b/c", "trainingRuntimeSpec": {"template": {"spec": spec}}}]}


def pod_patch(**container: Any) -> dict[str, Any]:
    return patch(template={"spec": {"template": {"spec": {"containers": [container]}}}})


def with_initializer(job: str, mounts: list[dict[str, str]] | None = None) -> dict[str, Any]:
    runtime = deepcopy(RUNTIME)
    pod = {"containers": [{"name": job, "volumeMounts": mounts or []}]}
    runtime["spec"]["template"]["spec"]["replicatedJobs"].append(
        {"name": job, "template": {"spec": {"template": {"spec": pod}}}}
    )
    return runtime


def test_a_plain_trainjob_is_admitted() -> None:
    found = admission_of(manifest(numNodes=2, env=[{"name": "STOKER_METHOD", "value": "sft"}]), RUNTIME)
    assert (found.problems, found.notices) == ((), ())
    assert admission_of(manifest(spec=pod_patch(name="node", volumeMounts=[])), RUNTIME).problems == ()


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (manifest("a" * 49), "write 48 or fewer"),
        (manifest("a" * 48, numNodes=11), "write 47 or fewer"),
        (manifest("Run"), "the name 'Run' is not one Trainer takes"),
        (manifest("1run"), "the name '1run' is not one Trainer takes"),
        ({**manifest(), "metadata": {}}, "the TrainJob has no name"),
        ({**manifest(), "apiVersion": "kubeflow.org/v2"}, "write trainer.kubeflow.org/v1alpha1"),
        (manifest(env=[{"name": "PET_NNODES", "value": "3"}]), "env PET_NNODES is Trainer's own"),
        (manifest(numNode=3), "spec.trainer of the TrainJob has no field 'numNode': did you mean numNodes?"),
        (manifest(spec={"podTemplateOverrides": []}), "write runtimePatches (Trainer v2.2 and later)"),
        ({**manifest(), "sepc": {}}, "the manifest of the TrainJob has no field 'sepc': did you mean spec?"),
        (manifest(spec={"runtimeRef": {"nam": "x"}}), "spec.runtimeRef of the TrainJob has no field 'nam'"),
        (
            manifest(spec={"initializer": {"dataset": {"storageURI": "hf://a/b"}}}),
            "spec.initializer.dataset of the TrainJob has no field 'storageURI': did you mean storageUri?",
        ),
        (manifest(spec={"initializer": {"model": {"storageUri": "a/b"}}}), "storageUri is 'a/b': write scheme://"),
        (manifest(spec={"initializer": {"model": {}}}), "the runtime has no job 'model-initializer'"),
        (manifest(spec={"runtimePatches": [{"manager": "me"}]}), "manager of a runtimePatch is 'me'"),
        (manifest(spec=patch(name="nodes")), "a runtimePatch is about job 'nodes', which the runtime has not"),
        (manifest(spec=pod_patch(name="main")), "container 'main', which the runtime's job 'node' has not"),
        (manifest(spec=pod_patch(name="node", env=[{"name": "A"}])), "write it in spec.trainer.env"),
        (manifest(spec=pod_patch(name="node", image="x")), "has no field 'image'"),
    ],
)
def test_what_the_cluster_refuses(job: Mapping[str, Any], message: str) -> None:
    assert message in "\n".join(admission_of(job, RUNTIME).problems)


def test_a_fetching_runtime_leaves_less_room_for_the_name() -> None:
    runtime = with_initializer("dataset-initializer")
    assert admission_of(manifest("a" * 33), runtime).problems == ()
    (problem,) = admission_of(manifest("a" * 34), runtime).problems
    assert "job 'dataset-initializer'" in problem
    assert "write 33 or fewer" in problem


def test_an_initializer_needs_its_volume() -> None:
    job = manifest(spec={"initializer": {"model": {"storageUri": "hf://a/b"}}})
    (problem,) = admission_of(job, with_initializer("model-initializer")).problems
    assert "mounts no volume 'initializer'" in problem
    mounts = [{"name": "initializer", "mountPath": "/workspace"}]
    assert admission_of(job, with_initializer("model-initializer", mounts)).problems == ()


def test_variables_of_torch_are_only_reserved_where_trainer_writes_them() -> None:
    runtime = deepcopy(RUNTIME)
    del runtime["spec"]["mlPolicy"]["torch"]
    assert admission_of(manifest(env=[{"name": "PET_NNODES", "value": "3"}]), runtime).problems == ()


def test_what_is_easily_missed_is_a_notice() -> None:
    runtime = deepcopy(RUNTIME)
    runtime["metadata"]["labels"]["trainer.kubeflow.org/support"] = "deprecated"
    notices = "\n".join(admission_of(manifest(image="x:1", spec={"suspend": True}), runtime).notices)
    assert "spec.suspend is true" in notices
    assert "its own image, x:1" in notices
    assert "the runtime is deprecated" in notices


MODELS = {
    "spec": models.TrainerV1alpha1TrainJobSpec,
    "spec.trainer": models.TrainerV1alpha1Trainer,
    "spec.runtimeRef": models.TrainerV1alpha1RuntimeRef,
    "spec.initializer": models.TrainerV1alpha1Initializer,
    "spec.initializer.dataset": models.TrainerV1alpha1DatasetInitializer,
    "spec.initializer.model": models.TrainerV1alpha1ModelInitializer,
    "spec.runtimePatches": models.TrainerV1alpha1RuntimePatch,
    "spec.runtimePatches.trainingRuntimeSpec": models.TrainerV1alpha1TrainingRuntimeSpecPatch,
}


@pytest.mark.parametrize("where", MODELS)
def test_the_fields_are_those_of_trainers_own_models(where: str) -> None:
    fields: Any = FIELDS
    for name in where.split("."):
        fields = fields[name]
    model: type[BaseModel] = MODELS[where]
    assert set(fields) == {field.alias or name for name, field in model.model_fields.items()}


@pytest.mark.parametrize("odd", [None, 7, "word", True, [], ["word"], {}, {"a": 1}], ids=repr)
def test_no_manifest_ends_in_a_traceback(odd: Any) -> None:
    full = manifest(
        numNodes=2, env=[{"name": "A"}], spec={**pod_patch(name="node"), "initializer": {"model": {"storageUri": "a"}}}
    )
    for which, whole in ((0, full), (1, RUNTIME)):
        for *way, last in paths(whole):
            manifests = [deepcopy(full), deepcopy(RUNTIME)]
            parent: Any = manifests[which]
            for key in way:
                parent = parent[key]
            parent[last] = odd
            admission_of(*manifests)
    assert container(RUNTIME)["name"] == "node"
