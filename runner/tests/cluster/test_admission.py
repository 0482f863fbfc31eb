"""What Trainer and JobSet would refuse is told before anything is submitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import pytest

from builders import (
    MANAGER,
    RUNTIME,
    container,
    container_patch,
    job_of_pod,
    patches,
    paths,
    trainjob,
    with_initializer,
)
from stoker.cluster.admission import admission_of


def test_a_plain_trainjob_is_admitted() -> None:
    found = admission_of(trainjob(numNodes=2, env=[{"name": "STOKER_METHOD", "value": "sft"}]), RUNTIME)
    assert (found.problems, found.notices) == ((), ())
    assert admission_of(trainjob(spec=container_patch(name="node", volumeMounts=[])), RUNTIME).problems == ()


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (trainjob("a" * 49), "write 48 or fewer"),
        (trainjob("a" * 48, numNodes=11), "write 47 or fewer"),
        (trainjob("Run"), "Trainer refuses the name 'Run'"),
        (trainjob("1run"), "Trainer refuses the name '1run'"),
        ({**trainjob(), "metadata": {}}, "the TrainJob has no name"),
        ({**trainjob(), "apiVersion": "kubeflow.org/v2"}, "write trainer.kubeflow.org/v1alpha1"),
        (trainjob(env=[{"name": "PET_NNODES", "value": "3"}]), "env PET_NNODES is set by Trainer"),
        (trainjob(numNode=3), "spec.trainer has no field 'numNode': did you mean numNodes?"),
        (trainjob(spec={"podTemplateOverrides": []}), "write runtimePatches (Trainer v2.2 and later)"),
        ({**trainjob(), "sepc": {}}, "the TrainJob has no field 'sepc': did you mean spec?"),
        (trainjob(spec={"runtimeRef": {"nam": "x"}}), "spec.runtimeRef has no field 'nam'"),
        (
            trainjob(spec={"initializer": {"dataset": {"storageURI": "hf://a/b"}}}),
            "spec.initializer.dataset has no field 'storageURI': did you mean storageUri?",
        ),
        (trainjob(spec={"initializer": {"model": {"storageUri": "a/b"}}}), "storageUri is 'a/b': write scheme://"),
        (trainjob(spec={"initializer": {"model": {}}}), "the runtime has no job 'model-initializer'"),
        (trainjob(spec={"runtimePatches": [{"manager": "me"}]}), "manager of a runtimePatch is 'me'"),
        (trainjob(spec=patches(job_of_pod("nodes"))), "a runtimePatch names job 'nodes', but the runtime only has: "),
        (trainjob(spec=container_patch(name="main")), "container 'main', but the runtime's job 'node' only has: node"),
        (trainjob(spec=container_patch(name="node", env=[{"name": "A"}])), "write it in spec.trainer.env"),
        (trainjob(spec=container_patch(name="node", image="x")), "containers[0] has no field 'image'"),
        (
            trainjob(spec=container_patch(name="node", volumeMounts=[{"name": "data", "mountPath": "/data"}])),
            "mounts volume 'data', but neither the runtime's pod nor the patch has it",
        ),
        (trainjob(numNodes="2"), "spec.trainer.numNodes is '2': it must be a whole number"),
        (trainjob(numNodes=3**50), "write 2147483647 or less"),
        (trainjob(args="--max_steps 3"), "spec.trainer.args is '--max_steps 3': it must be a list"),
        (trainjob(args=["--max_steps", 3]), 'spec.trainer.args[1] is 3: it must be text, write "3"'),
        (trainjob(args=["--packing", True]), 'spec.trainer.args[1] is true: it must be text, write "true"'),
        (trainjob(args=["a"] * 129), "spec.trainer.args has 129 entries: write 128 or fewer"),
        (trainjob(image=5), "spec.trainer.image is 5: it must be text"),
        (trainjob(env=[{"value": "x"}]), "spec.trainer.env[0] has no name: write one"),
        (trainjob(env=[{"name": "A", "val": "x"}]), "spec.trainer.env[0] has no field 'val': did you mean value?"),
        (trainjob(env=[{"name": "A"}, {"name": "A"}]), "spec.trainer.env has two entries with name 'A'"),
        (trainjob(resourcesPerNode={"limit": {"cpu": 1}}), "has no field 'limit': did you mean limits?"),
        (trainjob(resourcesPerNode={"cpu": 1}), "spec.trainer.resourcesPerNode has no field 'cpu'"),
        (trainjob(resourcesPerNode={"limits": {"memory": "2GB"}}), "limits.memory is '2GB': write a quantity such as"),
        (trainjob(resourcesPerNode={"limits": {"cpu": 0.5}}), "limits.cpu is 0.5: write a quantity such as 500m"),
        (trainjob(spec={"runtimeRef": {"name": "r", "apiGroup": "x"}}), "write trainer.kubeflow.org"),
        (trainjob(spec={"trainer": []}), "spec.trainer is a list: it must be a mapping"),
        (trainjob(spec={"suspend": "yes"}), "spec.suspend is 'yes': it must be true or false"),
        (trainjob(spec={"activeDeadlineSeconds": 0}), "spec.activeDeadlineSeconds is 0: write 1 or more"),
        (trainjob(spec={"managedBy": "me"}), "spec.managedBy is 'me': it must be trainer.kubeflow.org/trainjob-contr"),
        (trainjob(spec={"initializer": {"model": "hf://a/b"}}), "spec.initializer.model is 'hf://a/b': it must be a m"),
        (
            trainjob(spec={"runtimePatches": 2 * patches(job_of_pod("node"))["runtimePatches"]}),
            f"two entries with manager '{MANAGER}'",
        ),
        ({**trainjob(), "metadata": {"name": "a", "labels": {"a": 1}}}, "metadata.labels.a is 1: it must be text, wri"),
        (
            {**trainjob(), "metadata": {"name": "a", "labels": {"a": "b c"}}},
            "metadata.labels.a is 'b c': it must match",
        ),
        ({**trainjob(), "metadata": {"name": "a", "labelz": {}}}, "metadata has no field 'labelz': did you mean lab"),
    ],
)
def test_what_the_cluster_refuses(job: Mapping[str, Any], message: str) -> None:
    assert message in "\n".join(admission_of(job, RUNTIME).problems)


@pytest.mark.parametrize(
    ("where", "spec"),
    [
        ("spec.trainer", lambda env: {"trainer": {"env": env}}),
        ("spec.initializer.dataset", lambda env: {"initializer": {"dataset": {"env": env}}}),
        ("spec.initializer.model", lambda env: {"initializer": {"model": {"env": env}}}),
    ],
)
def test_a_variable_has_one_source(where: str, spec: Callable[[Any], Mapping[str, Any]]) -> None:
    env = [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "a"}}}, {"name": "B", "valueFrom": {}}]
    problems = admission_of(trainjob(spec=spec(env)), RUNTIME).problems
    assert f"env A of {where} has both value and valueFrom, so no pod can start: keep one of them" in problems
    assert f"valueFrom of env B of {where} has 0 sources: write one, for example secretKeyRef" in problems


def test_a_patch_mounts_a_claim_that_jobset_adds() -> None:
    runtime = deepcopy(RUNTIME)
    jobset = runtime["spec"]["template"]["spec"]
    jobset["volumeClaimPolicies"] = [{"templates": [{"metadata": {"name": "initializer"}}]}]
    mount = {"name": "initializer", "mountPath": "/mnt/ws"}
    job = trainjob(spec=container_patch(name="node", volumeMounts=[mount]))
    assert admission_of(job, runtime).problems == ()


def test_a_field_that_is_null_is_one_that_is_not_there() -> None:
    job = trainjob(numNodes=None, env=None, args=None, spec={"runtimePatches": None, "initializer": {"model": None}})
    assert admission_of(job, RUNTIME).problems == ()


def test_a_fetching_runtime_leaves_less_room_for_the_name() -> None:
    runtime = with_initializer("dataset-initializer")
    assert admission_of(trainjob("a" * 33), runtime).problems == ()
    (problem,) = admission_of(trainjob("a" * 34), runtime).problems
    assert "job 'dataset-initializer'" in problem
    assert "write 33 or fewer" in problem


def test_the_names_of_many_samplers_count() -> None:
    runtime = deepcopy(RUNTIME)
    sampler = {"name": "sampler", "template": {"spec": {"completions": 11, "template": {"spec": {"containers": []}}}}}
    runtime["spec"]["template"]["spec"]["replicatedJobs"].append(sampler)
    (problem,) = admission_of(trainjob("a" * 45), runtime).problems
    assert "the runtime's job 'sampler' get longer names, and 63 characters are allowed; write 44 or fewer" in problem
    assert admission_of(trainjob("a" * 44), runtime).problems == ()


def test_the_names_of_the_runtimes_own_nodes_count() -> None:
    runtime = deepcopy(RUNTIME)
    runtime["spec"]["mlPolicy"]["numNodes"] = 16
    (problem,) = admission_of(trainjob("a" * 48), runtime).problems
    assert "write 47 or fewer" in problem
    assert admission_of(trainjob("a" * 47), runtime).problems == ()
    assert admission_of(trainjob("a" * 48, numNodes=2), runtime).problems == ()


def test_an_initializer_needs_its_volume() -> None:
    job = trainjob(spec={"initializer": {"model": {"storageUri": "hf://a/b"}}})
    (problem,) = admission_of(job, with_initializer("model-initializer")).problems
    assert "mounts no volume 'initializer'" in problem
    mounts = [{"name": "initializer", "mountPath": "/workspace"}]
    assert admission_of(job, with_initializer("model-initializer", mounts)).problems == ()


def test_variables_of_torch_are_only_reserved_where_trainer_writes_them() -> None:
    runtime = deepcopy(RUNTIME)
    del runtime["spec"]["mlPolicy"]["torch"]
    assert admission_of(trainjob(env=[{"name": "PET_NNODES", "value": "3"}]), runtime).problems == ()


@pytest.mark.parametrize(
    ("resources", "problem"),
    [
        ({"requests": {"cpu": "8"}}, "the pods request cpu 8, which is more than their limit 2, so none can start"),
        ({"limits": {"memory": "1Gi"}}, "the pods request memory 2Gi, which is more than their limit 1Gi"),
        ({"requests": {"cpu": "2001m"}}, "the pods request cpu 2001m, which is more than their limit 2"),
        ({"requests": {"nvidia.com/gpu": 1}}, "the pods request nvidia.com/gpu, but have no limit of it"),
        (
            {"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 2}},
            "the pods request 1 of nvidia.com/gpu, but their limit is 2",
        ),
        ({"limits": {"nvidia.com/gpu": "500m"}}, "have 500m of nvidia.com/gpu, which cannot be divided"),
        ({"requests": {"hugepages-2Mi": "4Mi"}}, "the pods request hugepages-2Mi, but have no limit of it"),
        ({"claims": [{"name": "gpus"}]}, "resourcesPerNode claims 'gpus', but the runtime's pod has none"),
        ({"requests": {"cpu": "2"}, "limits": {"memory": "8Gi"}}, None),
        ({"requests": {"cpu": "2000m", "memory": "4096Mi"}}, None),
        ({"limits": {"nvidia.com/gpu": "1k"}}, None),
        ({"requests": {"nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": 2}}, None),
        # The Kubeflow SDK writes 2 so.
        ({"limits": {"nvidia.com/gpu": 2.0}}, None),
        ({"requests": {"ephemeral-storage": "1Gi"}}, None),
        ({}, None),
    ],
)
def test_resources_that_no_pod_can_have_are_refused(resources: Mapping[str, Any], problem: str | None) -> None:
    found = admission_of(trainjob(resourcesPerNode=resources), RUNTIME).problems
    if problem is None:
        assert found == ()
    else:
        (text,) = found
        assert problem in text


def test_what_is_easily_missed_is_a_notice() -> None:
    runtime = deepcopy(RUNTIME)
    runtime["metadata"]["labels"]["trainer.kubeflow.org/support"] = "deprecated"
    notices = "\n".join(admission_of(trainjob(spec={"suspend": True}), runtime).notices)
    assert "spec.suspend is true" in notices
    assert "the runtime is deprecated" in notices


@pytest.mark.parametrize("odd", [None, 7, "word", True, [], ["word"], {}, {"a": 1}], ids=repr)
def test_no_manifest_ends_in_a_traceback(odd: Any) -> None:
    full = trainjob(
        numNodes=2,
        env=[{"name": "A"}],
        spec={**container_patch(name="node"), "initializer": {"model": {"storageUri": "a"}}},
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
