"""What is missing when a run starts is said before: model, data, files, folders to write to, and shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders import (
    RUNTIME,
    RUNTIME_FILE,
    as_step,
    container,
    container_patch,
    gpu_runtime,
    job_of_pod,
    kept,
    patches,
    pod_of,
    replicated_jobs,
    trainjob,
    variables,
    with_initializers,
)
from stoker.cluster.validate import Validation, validate_one
from stoker.contract.exits import ExitCode

SAMPLED = yaml.safe_load(RUNTIME_FILE.with_name("trl-grpo-async-cpu.yaml").read_text())
FETCHED = {"storageUri": "hf://org/name"}
EMPTY = "because the volume initializer at /workspace is empty when the run starts"


def fetching(**changes: Any) -> dict[str, Any]:
    """Return our runtime with initializers that are ours, as the catalogue has them."""
    runtime = with_initializers(["stoker", "fetch", "model"])
    container_of(runtime, "dataset-initializer").update(command=["stoker", "fetch", "dataset"], **changes)
    return runtime


def container_of(runtime: Mapping[str, Any], job: str) -> dict[str, Any]:
    (pod,) = (pod_of(one) for one in replicated_jobs(dict(runtime)) if one["name"] == job)
    found: dict[str, Any] = pod["containers"][0]
    return found


def of(runtime: dict[str, Any] = RUNTIME, spec: Mapping[str, Any] | None = None, **trainer: Any) -> Validation:
    return validate_one(trainjob(spec=spec, **trainer), runtime)


def unchecked(verdict: Validation) -> str:
    return next((notice for notice in verdict.notices if notice.startswith("not checked: ")), "")


def test_an_empty_workspace_has_neither_model_nor_data() -> None:
    verdict = of()
    assert verdict.code is ExitCode.NO_INPUT
    model, data = (text for _, text in verdict.problems)
    assert model.startswith(f"the model /workspace/model is missing, {EMPTY}: put it there (spec.initializer.model of")
    assert data.startswith(f"the data set /workspace/dataset is missing, {EMPTY}: put it there (spec.initializer.data")


def test_what_initializers_fetch_is_there_and_is_not_checked() -> None:
    verdict = of(fetching(), {"initializer": {"model": FETCHED, "dataset": FETCHED}})
    assert verdict.problems == ()
    assert unchecked(verdict) == (
        "not checked: the model /workspace/model, which spec.initializer.model fetches; "
        "the data set /workspace/dataset, which spec.initializer.dataset fetches"
    )


def test_one_of_two_initializers_is_not_enough() -> None:
    ((code, text),) = of(fetching(), {"initializer": {"model": FETCHED}}).problems
    assert (code, text.startswith("the data set /workspace/dataset is missing, ")) == (ExitCode.NO_INPUT, True)


def test_a_folder_beside_the_fetched_one_is_empty_and_one_inside_is_not_known() -> None:
    spec = {"initializer": {"model": FETCHED, "dataset": FETCHED}}
    inside = of(fetching(), spec, args=["--dataset_name", "/workspace/dataset/train"])
    assert (inside.problems, "/workspace/dataset/train, which spec" in unchecked(inside)) == ((), True)
    assert of(fetching(), spec, args=["--dataset_name", "/workspace/data"]).code is ExitCode.NO_INPUT
    assert of(fetching(), spec, args=["--dataset_name", "/workspace/datasets"]).code is ExitCode.NO_INPUT


def test_an_initializer_of_somebody_else_may_fetch_anything() -> None:
    verdict = of(with_initializers())
    assert verdict.problems == ()
    assert unchecked(verdict).startswith("not checked: the model /workspace/model, in the volume initializer;")


def test_a_job_of_ones_own_may_fill_the_workspace() -> None:
    runtime = deepcopy(RUNTIME)
    mount = {"name": "initializer", "mountPath": "/anywhere"}
    replicated_jobs(runtime).append(
        as_step(job_of_pod("prepare", containers=[{"name": "prepare", "volumeMounts": [mount]}]))
    )
    assert of(runtime).problems == ()


@pytest.mark.parametrize("kind", ["initContainers", "containers"])
def test_a_container_beside_the_trainer_may_fill_the_workspace(kind: str) -> None:
    runtime = deepcopy(RUNTIME)
    pod = pod_of(replicated_jobs(runtime)[0])
    mount = {"name": "initializer", "mountPath": "/workspace"}
    pod[kind] = [*pod.get(kind, ()), {"name": "fill", "volumeMounts": [mount]}]
    assert of(runtime).problems == ()


@pytest.mark.parametrize("kind", ["initContainers", "containers"])
def test_a_container_beside_the_trainer_that_only_reads_fills_nothing(kind: str) -> None:
    runtime = deepcopy(RUNTIME)
    pod = pod_of(replicated_jobs(runtime)[0])
    mount = {"name": "initializer", "mountPath": "/workspace", "readOnly": True}
    pod[kind] = [*pod.get(kind, ()), {"name": "read", "volumeMounts": [mount]}]
    assert of(runtime).code is ExitCode.NO_INPUT


def test_samplers_read_the_workspace_and_do_not_fill_it() -> None:
    args = ["--reward_funcs", "get_soft_overlong_punishment"]
    verdict = validate_one(trainjob(runtime="trl-grpo-async", args=args), SAMPLED)
    assert verdict.code is ExitCode.NO_INPUT
    for what in ("the model /workspace/model", "the data set /workspace/dataset"):
        assert f"{what} is missing, {EMPTY}" in verdict.errors


def test_a_claim_that_exists_may_hold_anything() -> None:
    assert of(kept(RUNTIME)).problems == ()
    claim = {"name": "inputs", "persistentVolumeClaim": {"claimName": "ours"}}
    mounted = [{"name": "node", "volumeMounts": [{"name": "inputs", "mountPath": "/inputs"}]}]
    spec = patches(job_of_pod("node", volumes=[claim], containers=mounted))
    verdict = of(spec=spec, args=["--model_name_or_path", "/inputs/model", "--dataset_name", "/inputs/dataset"])
    assert verdict.problems == ()
    assert "the model /inputs/model, in the volume inputs" in unchecked(verdict)


def test_a_volume_in_memory_is_empty() -> None:
    volume = {"name": "scratch", "emptyDir": {}}
    mounted = [{"name": "node", "volumeMounts": [{"name": "scratch", "mountPath": "/inputs"}]}]
    spec = patches(job_of_pod("node", volumes=[volume], containers=mounted))
    verdict = of(kept(RUNTIME), spec, args=["--model_name_or_path", "/inputs/model"])
    assert "the model /inputs/model is missing, because the volume scratch at /inputs is empty" in verdict.errors


def test_where_no_volume_is_mounted_our_images_have_nothing() -> None:
    asked = ["--model_name_or_path", "/models/base"]
    assert (
        "the model /models/base is missing, because no volume is mounted there" in of(kept(RUNTIME), args=asked).errors
    )
    assert of(kept(RUNTIME), args=asked, image="mine:1").problems == ()
    assert of(kept(RUNTIME), args=["--model_name_or_path", "/opt/model"]).problems == ()


def test_ids_on_the_hub_are_said_to_be_unchecked() -> None:
    verdict = of(args=["--model_name_or_path", "Qwen/Qwen3-0.6B", "--dataset_name", "trl-lib/Capybara"])
    assert verdict.problems == ()
    assert unchecked(verdict) == "not checked: the model Qwen/Qwen3-0.6B; the data set trl-lib/Capybara"


def test_a_config_file_in_an_empty_workspace_cannot_be_read() -> None:
    ((code, text),) = of(args=["--config", "/workspace/sft.yaml"]).problems
    assert code is ExitCode.NO_INPUT
    assert text == (
        "--config /workspace/sft.yaml cannot be read, because the volume initializer at /workspace is empty when the "
        "run starts: mount it, or correct the path"
    )


def test_a_config_file_that_nobody_has_read_may_name_model_and_data() -> None:
    runtime = deepcopy(RUNTIME)
    pod_of(replicated_jobs(runtime)[0])["volumes"].append({"name": "settings", "configMap": {"name": "settings"}})
    container(runtime)["volumeMounts"].append({"name": "settings", "mountPath": "/settings"})
    verdict = of(runtime, args=["--config", "/settings/sft.yaml", "--report_to", "wandb"])
    assert verdict.problems == ()
    assert "the model /workspace/model, the volume initializer at /workspace is empty" in unchecked(verdict)


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("/elsewhere", "no volume is mounted there, and the container's own filesystem is read-only"),
        ("/inputs/output", "the volume inputs is read-only"),
        ("/workspace/mine", None),
        ("/cache/output", None),
    ],
)
def test_a_folder_that_nobody_can_write_to_is_78(output: str, problem: str | None) -> None:
    runtime = kept(RUNTIME, "inputs")
    container(runtime)["volumeMounts"][-1]["readOnly"] = True
    verdict = of(runtime, args=["--output_dir", output])
    if problem is None:
        assert verdict.problems == ()
    else:
        ((code, text),) = verdict.problems
        assert code is ExitCode.CONFIG
        assert text.startswith(f"the output folder {output} cannot be written to: {problem}: choose a folder")


def test_too_little_shared_memory_is_78() -> None:
    runtime = gpu_runtime()
    assert of(runtime).problems == ()
    node = container(runtime)
    node["volumeMounts"] = [mount for mount in node["volumeMounts"] if mount["name"] != "shm"]
    ((code, text),) = of(runtime).problems
    assert code is ExitCode.CONFIG
    assert "/dev/shm has 64 MiB but needs 128 MiB (2 GPU processes exchange data there)" in text
    small = gpu_runtime()
    (shm,) = (volume for volume in pod_of(replicated_jobs(small)[0])["volumes"] if volume["name"] == "shm")
    shm["emptyDir"]["sizeLimit"] = "100Mi"
    assert "/dev/shm has 100 MiB" in of(small).errors


def test_a_mount_that_a_patch_moves_is_where_it_is_now() -> None:
    moved = container_patch(name="node", volumeMounts=[{"name": "initializer", "mountPath": "/data"}])
    verdict = of(kept(RUNTIME), moved, args=["--dataset_name", "/data/dataset"])
    assert verdict.problems == ()
    assert "/data/dataset, in the volume initializer" in unchecked(verdict)


def test_a_run_that_must_resume_needs_a_checkpoint(tmp_path: Path) -> None:
    resuming = trainjob(env=variables({"STOKER_RESUME": "require"}))
    for name in ("model", "dataset"):
        (tmp_path / name).mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "dataset" / "train.jsonl").write_text('{"text": "a"}\n')
    verdict = validate_one(resuming, kept(RUNTIME))
    assert "a complete checkpoint in /workspace/output" in unchecked(verdict)
    verdict = validate_one(resuming, kept(RUNTIME), [f"initializer={tmp_path}"])
    assert (ExitCode.CONFIG, "STOKER_RESUME=require, but /workspace/output has no complete checkpoint: ") in [
        (code, text.partition("set it")[0]) for code, text in verdict.problems
    ]


def test_pods_that_mount_one_claim_as_two_volumes_never_start() -> None:
    team = {"persistentVolumeClaim": {"claimName": "team"}}
    runtime = deepcopy(RUNTIME)
    pod = pod_of(next(job for job in replicated_jobs(runtime) if job["name"] == "node"))
    pod["volumes"] = [*pod.get("volumes", ()), {"name": "inputs", **team}, {"name": "initializer", **team}]
    assert "team" not in of(runtime).errors, "a volume that is not mounted is never waited for"
    mount = {"name": "inputs", "mountPath": "/inputs"}
    verdict = of(runtime, container_patch(name="node", volumeMounts=[mount]))
    assert verdict.code is ExitCode.USAGE
    assert (
        "the pods of job node mount claim team as the volumes inputs and initializer, and Kubernetes never starts such "
        "pods: keep one of these volumes, and mount it at each path"
    ) in verdict.errors
