"""TorchTune on the cluster: full fine-tuning, submitted by Kubeflow's SDK alone, and LoRA, on two pods each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from runner.tests.integration.tune_jobs import LORA

from cluster import Cluster
from e2e.conftest import NAMESPACE, asked_for
from e2e.kube import Kube
from e2e.trainjobs import INPUTS_CLAIM, Reader, Run, trainjob
from e2e.tune import MANY_NODES, ONE_NODE, PATHS, RUNTIME


@pytest.fixture(scope="module")
def sdk_runs(
    cluster: Cluster, kube: Kube, catalogue: Callable[[], None], tune_runtimes: None, tune_inputs: str
) -> Iterator[Callable[[str, str, int], Run]]:
    """Submits full fine-tuning with the SDK's BuiltinTrainer: name, runtime, nodes; deleted when the module ends."""
    runs = []

    def create(name: str, runtime: str, nodes: int) -> Run:
        run = Run(kube, name)
        run.delete()
        runs.append(run)
        script = Path(__file__).with_name("builtin_trainer.py")
        words = [sys.executable, str(script), name, runtime, str(nodes), NAMESPACE, INPUTS_CLAIM]
        done = cluster.run(words, check=False, capture_output=True)
        assert done.returncode == 0, done.stderr
        return run

    yield create
    for run in runs:
        run.delete()


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest,
    submit_together: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Run]],
    sdk_runs: Callable[[str, str, int], Run],
) -> Mapping[str, Run]:
    """A full and, if it is asked for, a LoRA run on two pods each, at once."""
    lora = ["lora_finetune_distributed", "--config", "llama3_2/1B", f"model={LORA}", "model.lora_rank=4", "epochs=2"]
    full = sdk_runs("tune-full", MANY_NODES, 2)
    if "lora" not in asked_for(request, test_torchtune_trains_on_two_pods_to_complete, "method"):
        return {"full": full}
    return {"full": full, "lora": submit_together([trainjob("tune-lora", lora, runtime=RUNTIME)])["tune-lora"]}


@pytest.mark.parametrize("method", ["full", pytest.param("lora", marks=pytest.mark.full)])
def test_torchtune_trains_on_two_pods_to_complete(runs: Mapping[str, Run], reader: Reader, method: str) -> None:
    run = runs[method]
    run.wait_complete(seconds=600)
    manifest = run.manifest(reader)
    found = (manifest["framework"], manifest["method"], manifest["world_size"], manifest["nodes"], manifest["steps"])
    assert found == ("torchtune", method, 2, 2, {"full": 3, "lora": 6}[method])
    files = {file["path"] for file in manifest["files"]}
    weights = {"full": "model-00001-of-00001.safetensors", "lora": "adapter_model.safetensors"}
    assert files & {*weights.values()} == {weights[method]}
    assert run.restarts().total == 0
    told = run.kube.stoker("status", run.name).stdout
    assert "(torchtune), 2 nodes" in told
    assert f"step {manifest['steps']}" in told, told


def command_of(run: Run) -> list[str]:
    """Return the command of a run's pods, as Trainer wrote it."""
    containers = run.pods()[0]["spec"]["containers"]
    (node,) = (container for container in containers if container["name"] == "node")
    found: list[str] = node["command"]
    return found


def test_the_command_of_the_sdks_run_is_trainers(runs: Mapping[str, Run]) -> None:
    command = command_of(runs["full"])
    address = "--rdzv_endpoint=tune-full-node-0-0.tune-full:29500"
    assert command[:5] == ["tune", "run", address, "full_finetune_distributed", "--config"]
    assert set(PATHS) <= set(command)


@pytest.mark.full
def test_the_sdks_builtin_trainer_runs_on_one_pod(sdk_runs: Callable[[str, str, int], Run], reader: Reader) -> None:
    run = sdk_runs("tune-one", ONE_NODE, 1)
    run.wait_complete(seconds=600)
    assert command_of(run)[:3] == ["tune", "run", "full_finetune_single_device"]
    manifest = run.manifest(reader)
    assert (manifest["method"], manifest["world_size"], manifest["steps"]) == ("full", 1, 3)


@pytest.mark.full
def test_a_wrong_key_fails_the_run_at_once(
    submit: Callable[[Mapping[str, Any]], Run], tune_runtimes: None, tune_inputs: str
) -> None:
    # `tune run` as Trainer leaves it alone: a recipe follows in the command itself.
    command = ["tune", "run", "lora_finetune_distributed", "--config", "llama3_2/1B"]
    run = submit(trainjob("tune-wrong", ["model.lora_rnak=4"], command=command, runtime=RUNTIME))
    run.wait_failed()
    assert {code for code, _ in run.endings()} == {64}
    assert run.restarts().total == 0
