"""The runner takes what the chart renders: a plan for every runtime on every accelerator, without a cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builders import trainjob
from charts.helm import OWN_IMAGES, TRAINING_RUNTIMES, Manifest, accelerators, render
from charts.runtimes import runtimes
from stoker.facts import Facts, kept_variables
from stoker.plan import Plan, Request, resolve_plan
from stoker.trainjob import job_of


@pytest.fixture(scope="module", params=accelerators(TRAINING_RUNTIMES), ids=str)
def catalogue(request: pytest.FixtureRequest) -> list[Manifest]:
    """The whole catalogue on one accelerator."""
    settings = [*OWN_IMAGES, f"accelerator={json.dumps(request.param)}"]
    return runtimes(render(TRAINING_RUNTIMES, settings=settings))


def plan(runtime: Manifest, trainer: dict[str, Any] | None = None) -> Plan:
    """Return what the first pod of a TrainJob would do that says nothing more than `trainer`."""
    name = runtime["metadata"]["name"]
    job = job_of(trainjob("run", runtime=name, with_trainer=trainer is not None, **(trainer or {})), runtime)
    env = kept_variables(job.environment(0, 0, "job", "run", "localhost", 29500))
    assert job.argv[:2] == ("stoker", "run")
    devices = int(env.get("STOKER_NPROC_PER_NODE", "1")) if env["STOKER_ACCELERATOR"] != "cpu" else 0
    facts = Facts(env=env, devices=tuple(f"device{n}" for n in range(devices)), cpus=4, uid=1001)
    return resolve_plan(facts, Request(job.argv[2:]))


def test_every_runtime_can_be_planned(catalogue: list[Manifest]) -> None:
    for runtime in catalogue:
        name = runtime["metadata"]["name"]
        # The generic runtime of TorchTune has neither recipe nor configuration of its own.
        args = ["full_finetune_distributed", "--config", "llama3_2/1B_full"]
        planned = plan(runtime, {"args": args} if name == "torchtune-distributed" else None)
        assert planned.framework == runtime["metadata"]["labels"]["trainer.kubeflow.org/framework"]
        assert planned.output_dir == "/workspace/output"
        assert planned.world.nnodes == 1


def test_defaults_of_a_runtime_are_told_from_what_a_user_says(catalogue: list[Manifest]) -> None:
    (runtime,) = (item for item in catalogue if item["metadata"]["name"] == "trl-qwen3-0.6b")
    env = [{"name": "STOKER_ARG_LORA_R", "value": "64"}]
    sources = {setting.name: (setting.value, setting.source) for setting in plan(runtime, {"env": env}).settings}
    assert sources["lora_r"] == ("64", "TrainJob env")
    assert sources["lora_alpha"] == ("32", "runtime")


def test_no_default_of_a_runtime_is_foreign_to_its_own_method(catalogue: list[Manifest]) -> None:
    for runtime in catalogue:
        if runtime["metadata"]["name"] != "torchtune-distributed":
            assert not [notice for notice in plan(runtime).notices if "dropped" in notice]
