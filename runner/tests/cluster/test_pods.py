"""A TrainJob and its runtime become the container that Trainer would start."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest

from builders import RUNTIME, container, container_patch, paths, replicated_jobs, trainjob, variables
from stoker.cluster.assumed import assumed_facts
from stoker.cluster.pods import NodeJob, expand, job_of, quantity, rewritten
from stoker.contract.exits import ExitCode, RunError


def environment(job: NodeJob, node: int = 0, attempt: int = 0) -> dict[str, str]:
    return job.environment(node, attempt, job_id="job-uid", run_id="uid", address="127.0.0.1", port=1234)


def test_trainer_injects_its_variables_and_they_win() -> None:
    job = job_of(trainjob(numNodes=3, numProcPerNode=2), RUNTIME)
    env = environment(job, node=2)
    assert {name: value for name, value in env.items() if name.startswith("PET_")} == {
        "PET_NNODES": "3",
        "PET_NPROC_PER_NODE": "2",
        "PET_NODE_RANK": "2",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": "1234",
    }


def test_without_spec_trainer_the_runtimes_own_values_hold() -> None:
    manifest, runtime = trainjob(with_trainer=False), deepcopy(RUNTIME)
    for entry in container(runtime)["env"]:
        if entry["name"] in ("PET_NNODES", "PET_NPROC_PER_NODE"):
            entry["value"] = "5"
    env = environment(job_of(manifest, runtime), node=3)
    assert (env["PET_NNODES"], env["PET_NPROC_PER_NODE"], env["PET_NODE_RANK"]) == ("5", "5", "3")


def test_the_downward_api_is_answered() -> None:
    env = environment(job_of(trainjob(), RUNTIME), attempt=2)
    assert env["JOBSET_NAME"] == "sft"
    assert env["STOKER_RUN_ID"] == "uid"
    assert env["STOKER_JOB_ID"] == "job-uid"
    assert env["STOKER_RESTART_ATTEMPT"] == "2"
    assert env["STOKER_FRAMEWORK"] == "trl"
    assert env["STOKER_CPU_REQUEST"] == "1"


def test_env_of_the_trainjob_is_merged_by_name_in_place() -> None:
    job = job_of(trainjob(env=[{"name": "STOKER_METHOD", "value": "dpo"}, {"name": "NEW", "value": "1"}]), RUNTIME)
    names = [entry["name"] for entry in job.env]
    assert names == [*(entry["name"] for entry in container(RUNTIME)["env"]), "NEW"]
    assert environment(job)["STOKER_METHOD"] == "dpo"


def test_command_and_args_replace_the_runtimes() -> None:
    assert job_of(trainjob(), RUNTIME).argv == ("stoker", "run")
    assert job_of(trainjob(args=["--a"]), RUNTIME).argv == ("stoker", "run", "--a")
    assert job_of(trainjob(command=["torchrun"], args=["x.py"]), RUNTIME).argv == ("torchrun", "x.py")


@pytest.mark.parametrize(
    ("resources", "processes"),
    [
        ({}, "1"),
        ({"requests": {"cpu": "3500m"}}, "4"),
        ({"requests": {"nvidia.com/gpu": 2}}, "auto"),
        ({"limits": {"gpu.intel.com/i915": 1}}, "auto"),
        ({"requests": {"memory": "4Gi"}}, "1"),
    ],
    ids=["no CPU asked for", "the TrainJob's, rounded up", "a GPU", "another maker's GPU", "memory alone"],
)
def test_processes_nobody_asked_for_are_derived_as_trainer_does(resources: Mapping[str, Any], processes: str) -> None:
    job = job_of(trainjob(resourcesPerNode=resources), RUNTIME)
    assert environment(job)["PET_NPROC_PER_NODE"] == processes


@pytest.mark.parametrize(
    ("accelerator", "resources", "devices"),
    [
        ("nvidia", {"nvidia.com/gpu": 2, "nvidia.com/rdma": 1}, 2),
        ("amd", {"amd.com/gpu": 2, "amd.com/vnic": 4}, 2),
        ("amd", {"amd.com/cpx_nps4": 3}, 3),
        ("intel", {"gpu.intel.com/xe": 2, "gpu.intel.com/memory.max": 4096}, 2),
    ],
)
def test_what_is_not_a_device_is_not_counted(accelerator: str, resources: Mapping[str, int], devices: int) -> None:
    job = job_of(trainjob(resourcesPerNode={"limits": resources}), RUNTIME)
    facts = assumed_facts(job, {"STOKER_ACCELERATOR": accelerator})
    assert len(facts.devices) == devices


def test_a_trainjobs_resources_alone_are_counted_though_the_pod_gets_both() -> None:
    runtime = deepcopy(RUNTIME)
    container(runtime)["resources"] = {"limits": {"nvidia.com/gpu": 2}}
    assert environment(job_of(trainjob(), runtime))["PET_NPROC_PER_NODE"] == "auto"
    job = job_of(trainjob(resourcesPerNode={"requests": {"memory": "4Gi"}}), runtime)
    assert environment(job)["PET_NPROC_PER_NODE"] == "1"
    assert job.resources == {"nvidia.com/gpu": 2, "memory": "4Gi"}


def test_requests_and_limits_are_merged_each_for_themselves() -> None:
    runtime = deepcopy(RUNTIME)
    container(runtime)["resources"] = {"requests": {"cpu": "8"}, "limits": {"cpu": "16", "memory": "4Gi"}}
    told = job_of(trainjob(resourcesPerNode={"limits": {"cpu": "12"}}), runtime)
    assert told.resources == {"cpu": "8", "memory": "4Gi"}
    assert told.limits == {"cpu": "12", "memory": "4Gi"}
    env = environment(told)
    assert (env["STOKER_CPU_REQUEST"], env["STOKER_CPU_LIMIT"], env["PET_NPROC_PER_NODE"]) == ("8", "12", "12")


def test_mounts_of_runtime_patches_are_seen() -> None:
    patch = container_patch(name="node", volumeMounts=[{"name": "inputs", "mountPath": "/inputs"}])
    job = job_of(trainjob(spec=patch), RUNTIME)
    assert job.mounts["inputs"] == ("/inputs",)
    assert job.mounts["initializer"] == ("/workspace",)


def test_restarts_and_grace_come_from_the_runtime() -> None:
    job = job_of(trainjob(), RUNTIME)
    assert (job.max_restarts, job.grace_seconds) == (3, 120)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("1", 1), ("500m", 0.5), ("1.5", 1.5), (".5", 0.5), ("2.", 2), ("4Gi", 2**32), ("2k", 2000)),
        *(("1e3", 1000), ("1E", 1e18), ("100u", 1e-4), ("1Pi", 2**50), ("12E-1", 1.2)),
    ],
)
def test_quantities(text: str, number: float) -> None:
    assert quantity(text) == pytest.approx(number)


@pytest.mark.parametrize("text", ["", "1.2.3", "1 Gi", "Gi", "1g", "-1", "1e", "1e999", "."])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(RunError, match="is not a quantity"):
        quantity(text)


def test_references_are_replaced_as_the_kubelet_does() -> None:
    values = {"A": "1", "B": "$(A)"}
    assert expand("$(A)-$(B)-$(MISSING)-$A-$(", values) == "1-$(A)-$(MISSING)-$A-$("
    assert expand("$$(A) $$$(A) a$$b $(a.b) $", {**values, "a.b": "2"}) == "$(A) $1 a$b 2 $"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/workspace/model", "/tmp/out/model"),
        ("/workspace", "/tmp/out"),
        ("--a=/workspace/b,/workspace/c", "--a=/tmp/out/b,/tmp/out/c"),
        ('{"x":"/workspace/model"}', '{"x":"/tmp/out/model"}'),
        ("/workspaces/model", "/workspaces/model"),
        ("/my/workspace/model", "/my/workspace/model"),
        ("/workspace-2", "/workspace-2"),
        ("/workspace/data/x", "/tmp/data/x"),
        ("org/workspace", "org/workspace"),
    ],
)
def test_mount_paths_become_local_folders(text: str, expected: str) -> None:
    assert rewritten(text, {"/workspace": "/tmp/out", "/workspace/data": "/tmp/data"}) == expected


def test_a_replaced_path_is_not_replaced_again() -> None:
    assert rewritten("/a/x", {"/a": "/b", "/b": "/c"}) == "/b/x"
    assert rewritten("/a", {}) == "/a"


def broken(change: str) -> tuple[dict[str, Any], dict[str, Any]]:
    job, runtime = trainjob(), deepcopy(RUNTIME)
    if change == "another runtime":
        job["spec"]["runtimeRef"]["name"] = "other"
    elif change == "another kind":
        job["kind"] = "Job"
    elif change == "no spec":
        del job["spec"]
    elif change == "a list for a mapping":
        job["spec"]["trainer"] = ["a"]
    elif change == "words for a number":
        job["spec"]["trainer"] = {"numNodes": "two"}
    elif change == "no trainer job":
        replicated_jobs(runtime)[0]["template"]["metadata"]["labels"] = {}
    elif change == "no container":
        container(runtime)["name"] = "other"
    return job, runtime


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("another runtime", "the TrainJob names runtime 'other', but --runtime is 'trl-distributed'"),
        ("another kind", "a resource of kind 'Job' was given: give a TrainJob"),
        ("no spec", "lacks the field 'spec'"),
        ("a list for a mapping", "has a field of the wrong type"),
        ("words for a number", "numNodes of the TrainJob is 'two': it must be a whole number, 1 or more"),
        ("no trainer job", "has no job with the label trainer.kubeflow.org/trainjob-ancestor-step: trainer"),
        ("no container", "has no container named node"),
    ],
)
def test_manifests_that_do_not_fit_are_refused(change: str, message: str) -> None:
    with pytest.raises(RunError) as refused:
        job_of(*broken(change))
    assert refused.value.code is ExitCode.USAGE
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ({"args": ["--max_steps", 20]}, 'command or args of the TrainJob or its runtime has 20, .* write "20"'),
        ({"env": [{"name": "A", "value": 20}]}, 'env of the TrainJob or its runtime has 20, .* write "20"'),
        ({"args": ["--packing", True]}, 'has true, .* write "true"'),
        ({"args": "--max_steps 3"}, "command and args of a TrainJob are lists"),
        ({"numNodes": 0}, "numNodes of the TrainJob is 0: it must be a whole number, 1 or more"),
        ({"numNodes": -2}, "numNodes of the TrainJob is -2"),
        ({"numProcPerNode": True}, "numProcPerNode of the TrainJob is True"),
        ({"numnodes": 3}, "spec.trainer of the TrainJob has no field 'numnodes': did you mean numNodes?"),
        ({"envs": []}, "spec.trainer of the TrainJob has no field 'envs': did you mean env?"),
    ],
)
def test_what_kubernetes_refuses_is_refused(trainer: Mapping[str, Any], message: str) -> None:
    with pytest.raises(RunError, match=message):
        job_of(trainjob(**trainer), RUNTIME)


def test_what_only_a_cluster_has_is_refused_by_name() -> None:
    secret = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
    job = job_of(trainjob(env=[secret]), RUNTIME)
    with pytest.raises(RunError, match="env HF_TOKEN comes from secretKeyRef") as refused:
        environment(job)
    assert refused.value.code is ExitCode.CONFIG


FULL_JOB = trainjob(numNodes=2, numProcPerNode=1, args=["--a"], env=variables({"A": "1"}), resourcesPerNode={})


@pytest.mark.parametrize("odd", [None, 7, "word", True, [], ["word"], {}, {"a": 1}], ids=repr)
def test_no_manifest_ends_in_a_traceback(odd: Any) -> None:
    for which, manifest in ((0, FULL_JOB), (1, RUNTIME)):
        for *way, last in paths(manifest):
            manifests = [deepcopy(FULL_JOB), deepcopy(RUNTIME)]
            parent: Any = manifests[which]
            for key in way:
                parent = parent[key]
            parent[last] = odd
            try:
                environment(job_of(*manifests))
            except RunError:
                pass
            except Exception as error:  # noqa: BLE001 - any of them is what this test is about
                pytest.fail(f"{odd!r} at {[*way, last]} of the {('TrainJob', 'runtime')[which]}: {error!r}")
