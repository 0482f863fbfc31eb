"""What Trainer and JobSet would refuse is told before anything is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest
from runner.tests.cluster.test_pods import RUNTIME, container, paths, trainjob

from stoker.cluster.admission import admission_of


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
        (manifest(numNode=3), "spec.trainer has no field 'numNode': did you mean numNodes?"),
        (manifest(spec={"podTemplateOverrides": []}), "write runtimePatches (Trainer v2.2 and later)"),
        ({**manifest(), "sepc": {}}, "the manifest has no field 'sepc': did you mean spec?"),
        (manifest(spec={"runtimeRef": {"nam": "x"}}), "spec.runtimeRef has no field 'nam'"),
        (
            manifest(spec={"initializer": {"dataset": {"storageURI": "hf://a/b"}}}),
            "spec.initializer.dataset has no field 'storageURI': did you mean storageUri?",
        ),
        (manifest(spec={"initializer": {"model": {"storageUri": "a/b"}}}), "storageUri is 'a/b': write scheme://"),
        (manifest(spec={"initializer": {"model": {}}}), "the runtime has no job 'model-initializer'"),
        (manifest(spec={"runtimePatches": [{"manager": "me"}]}), "manager of a runtimePatch is 'me'"),
        (manifest(spec=patch(name="nodes")), "a runtimePatch is about job 'nodes', which the runtime has not"),
        (manifest(spec=pod_patch(name="main")), "container 'main', which the runtime's job 'node' has not"),
        (manifest(spec=pod_patch(name="node", env=[{"name": "A"}])), "write it in spec.trainer.env"),
        (manifest(spec=pod_patch(name="node", image="x")), "containers[0] has no field 'image'"),
        (
            manifest(spec=pod_patch(name="node", volumeMounts=[{"name": "data", "mountPath": "/data"}])),
            "mounts volume 'data', which neither the runtime's pod nor the patch has",
        ),
        (manifest(numNodes="2"), "spec.trainer.numNodes is '2': it must be a whole number"),
        (manifest(numNodes=3**50), "write 2147483647 or less"),
        (manifest(args="--max_steps 3"), "spec.trainer.args is '--max_steps 3': it must be a list"),
        (manifest(args=["--max_steps", 3]), 'spec.trainer.args[1] is 3: it must be text, write "3"'),
        (manifest(args=["--packing", True]), 'spec.trainer.args[1] is true: it must be text, write "true"'),
        (manifest(args=["a"] * 129), "spec.trainer.args has 129 entries: write 128 or fewer"),
        (manifest(image=5), "spec.trainer.image is 5: it must be text"),
        (manifest(env=[{"value": "x"}]), "spec.trainer.env[0] has no name: write one"),
        (manifest(env=[{"name": "A", "val": "x"}]), "spec.trainer.env[0] has no field 'val': did you mean value?"),
        (manifest(env=[{"name": "A"}, {"name": "A"}]), "spec.trainer.env has two entries with name 'A'"),
        (manifest(env=[{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "a"}}}]), "has both value"),
        (manifest(env=[{"name": "A", "valueFrom": {}}]), "valueFrom of env A names 0 sources"),
        (manifest(resourcesPerNode={"limit": {"cpu": 1}}), "has no field 'limit': did you mean limits?"),
        (manifest(resourcesPerNode={"cpu": 1}), "spec.trainer.resourcesPerNode has no field 'cpu'"),
        (manifest(resourcesPerNode={"limits": {"memory": "2GB"}}), "limits.memory is '2GB': write a quantity such as"),
        (manifest(resourcesPerNode={"limits": {"cpu": 0.5}}), "limits.cpu is 0.5: write a quantity such as 500m"),
        (manifest(spec={"runtimeRef": {"name": "r", "apiGroup": "x"}}), "write trainer.kubeflow.org"),
        (manifest(spec={"trainer": []}), "spec.trainer is a list: it must be a mapping"),
        (manifest(spec={"suspend": "yes"}), "spec.suspend is 'yes': it must be true or false"),
        (manifest(spec={"activeDeadlineSeconds": 0}), "spec.activeDeadlineSeconds is 0: write 1 or more"),
        (manifest(spec={"managedBy": "me"}), "spec.managedBy is 'me': it must be trainer.kubeflow.org/trainjob-contr"),
        (manifest(spec={"initializer": {"model": "hf://a/b"}}), "spec.initializer.model is 'hf://a/b': it must be a m"),
        (manifest(spec={"runtimePatches": 2 * patch()["runtimePatches"]}), "two entries with manager 'a.b/c'"),
        ({**manifest(), "metadata": {"name": "a", "labels": {"a": 1}}}, "metadata.labels.a is 1: it must be text, wri"),
        ({**manifest(), "metadata": {"name": "a", "labels": {"a": "b c"}}}, "metadata.labels.a is 'b c', which does"),
        ({**manifest(), "metadata": {"name": "a", "labelz": {}}}, "metadata has no field 'labelz': did you mean lab"),
    ],
)
def test_what_the_cluster_refuses(job: Mapping[str, Any], message: str) -> None:
    assert message in "\n".join(admission_of(job, RUNTIME).problems)


def test_a_field_that_is_null_is_one_that_is_not_there() -> None:
    job = manifest(numNodes=None, env=None, args=None, spec={"runtimePatches": None, "initializer": {"model": None}})
    assert admission_of(job, RUNTIME).problems == ()


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
