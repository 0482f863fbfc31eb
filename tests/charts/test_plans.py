"""The runner takes what the chart renders: a plan for every runtime on every accelerator, without a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from runner.tests.samples import resolve

from builders import job_of_pod, patches, replicated_jobs, trainjob, variables
from charts.helm import (
    OWN_IMAGES,
    ROOT,
    TRAINING_RUNTIMES,
    Manifest,
    accelerators,
    manifests,
    render,
    template,
    values_files,
)
from charts.runtimes import runtimes
from stoker.cluster.pods import job_of
from stoker.contract.variables import kept_variables
from stoker.plan.facts import Facts
from stoker.plan.plan import Plan

ARGS = {
    # It has neither recipe nor configuration of its own.
    "torchtune-distributed": ["full_finetune_distributed", "--config", "llama3_2/1B_full"],
    # A reward is the user's own, and so is the release of the samplers.
    "trl-grpo-async-external": ["--reward_funcs", "think_format_reward", "--samplers", "http://samplers-control:8090"],
    "trl-grpo-async": ["--reward_funcs", "think_format_reward"],
}
"""What TrainJobs must say, by the runtime."""


@pytest.fixture(scope="module", params=accelerators(TRAINING_RUNTIMES), ids=str)
def catalogue(request: pytest.FixtureRequest) -> list[Manifest]:
    """The whole catalogue on one accelerator."""
    settings = [*OWN_IMAGES, f"accelerator={json.dumps(request.param)}"]
    return [one for one in runtimes(render(TRAINING_RUNTIMES, settings=settings)) if not is_endpoint(one)]


def is_endpoint(runtime: Manifest) -> bool:
    """Return whether the nodes of a runtime serve clients and train by no plan."""
    node = replicated_jobs(runtime)[-1]["template"]["spec"]["template"]["spec"]["containers"][0]
    return bool(node["command"] == ["stoker", "tinker"])


def plan(runtime: Manifest, trainer: dict[str, Any] | None = None) -> Plan:
    """Return what the first pod of a TrainJob would do that says nothing more than `trainer`."""
    name = runtime["metadata"]["name"]
    job = job_of(trainjob("run", runtime=name, with_trainer=trainer is not None, **(trainer or {})), runtime)
    env = kept_variables(job.environment(0, 0, "job", "run", "localhost", 29500))
    assert job.argv[:2] == ("stoker", "run")
    devices = int(env.get("STOKER_NPROC_PER_NODE", "1")) if env["STOKER_ACCELERATOR"] != "cpu" else 0
    facts = Facts(env=env, devices=tuple(f"device{n}" for n in range(devices)), cpus=4, uid=1001)
    return resolve(facts, job.argv[2:])


def test_every_runtime_can_be_planned(catalogue: list[Manifest]) -> None:
    for runtime in catalogue:
        name = runtime["metadata"]["name"]
        planned = plan(runtime, told(name))
        assert planned.framework == runtime["metadata"]["labels"]["trainer.kubeflow.org/framework"]
        assert planned.output_dir == "/workspace/output"
        assert planned.world.nnodes == 1


@pytest.mark.parametrize("values", values_files(TRAINING_RUNTIMES), ids=lambda path: str(path.stem))
def test_a_plain_trainjob_is_valid_on_every_runtime(values: Path, tmp_path: Path) -> None:
    """As a user would ask: `stoker validate` with what Helm rendered."""
    rendered = template(TRAINING_RUNTIMES, [values])
    trainjobs = [two_nodes(runtime) for runtime in runtimes(manifests(rendered))]
    (file := tmp_path / "runtimes.yaml").write_text(rendered)
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "validate", "-", "--runtime", file],
        check=False,
        input=yaml.safe_dump_all(trainjobs),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "runner" / "src")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [job for job in trainjobs if f"{job['metadata']['name']}: valid: " not in done.stdout] == []


def told(name: str) -> dict[str, Any] | None:
    """Return what a TrainJob must say on a runtime of this name, which may end in a version; None for nothing."""
    return next(({"args": args} for runtime, args in ARGS.items() if name.startswith(runtime)), None)


def two_nodes(runtime: Manifest) -> Manifest:
    """Return a TrainJob of two nodes that says no more than its runtime asks for, and where model and data are."""
    name = runtime["metadata"]["name"]
    more: dict[str, Any] = told(name) or {}
    if is_endpoint(runtime):
        return endpoint(runtime)
    if any(job["name"] == "model-initializer" for job in replicated_jobs(runtime)):
        fetched = {"storageUri": "hf://org/name"}
        more["spec"] = {"initializer": {"model": fetched, "dataset": fetched}}
    elif any(job["name"] == "sampler" for job in replicated_jobs(runtime)):
        # Samplers load the model from a volume.
        claim = {"name": "inputs", "persistentVolumeClaim": {"claimName": "inputs"}}
        container = {"name": "node", "volumeMounts": [{"name": "inputs", "mountPath": "/inputs"}]}
        more["spec"] = patches(job_of_pod("node", volumes=[claim], containers=[container]))
        more["env"] = variables({"STOKER_ARG_MODEL_NAME_OR_PATH": "/inputs/model", "STOKER_ARG_DATASET_NAME": "c/d"})
    else:
        more["env"] = variables({"STOKER_ARG_MODEL_NAME_OR_PATH": "a/b", "STOKER_ARG_DATASET_NAME": "c/d"})
    return trainjob(name.replace(".", "-"), runtime=name, kind=runtime["kind"], numNodes=2, **more)


def endpoint(runtime: Manifest) -> Manifest:
    """Return a TrainJob of an endpoint on a model of its image, with the key that its session gives it."""
    name = runtime["metadata"]["name"]
    key = {"name": "STOKER_SAMPLERS_API_KEY", "valueFrom": {"secretKeyRef": {"name": "key", "key": "api-key"}}}
    return trainjob(
        name.replace(".", "-"),
        runtime=name,
        kind=runtime["kind"],
        numNodes=1,
        env=[key],
        args=["--model_name_or_path=/opt/tiny"],
    )


def test_defaults_of_a_runtime_are_told_from_what_a_user_says(catalogue: list[Manifest]) -> None:
    (runtime,) = (item for item in catalogue if item["metadata"]["name"] == "trl-qwen3-0.6b")
    env = [{"name": "STOKER_ARG_LORA_R", "value": "64"}]
    sources = {setting.name: (setting.value, setting.source) for setting in plan(runtime, {"env": env}).settings}
    assert sources["lora_r"] == ("64", "TrainJob env")
    assert sources["lora_alpha"] == ("32", "runtime")


def test_no_default_of_a_runtime_is_foreign_to_its_own_method(catalogue: list[Manifest]) -> None:
    for runtime in catalogue:
        name = runtime["metadata"]["name"]
        planned = plan(runtime, told(name))
        assert not [notice for notice in planned.notices if "dropped" in notice]
