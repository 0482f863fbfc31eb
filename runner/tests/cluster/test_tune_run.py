"""The Kubeflow SDK's BuiltinTrainer sends `tune run` without a recipe, and gets the one that Trainer would write."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders import RUNTIME, container, trainjob
from stoker.backends import Initializer, LoraConfig, Source, TorchTuneConfig
from stoker.cluster.pods import expand, job_of
from stoker.cluster.validate import validate_one
from stoker.submit import trainjob as manifests

CATALOGUE = Path(__file__).parents[3] / "tests/charts/golden/training-runtimes/default.yaml"
NAME = "torchtune-qwen2.5-1.5b"
LORA, QLORA, DORA = "model.lora_attn_modules=[q_proj]", "model.quantize_base=True", "model.use_dora=true"
ENDPOINT = "--rdzv_endpoint=sft-node-0-0.sft:29500"
ONE = {"numProcPerNode": 1}
GPUS = {count: {"resourcesPerNode": {"limits": {"nvidia.com/gpu": count}}} for count in (1, 2)}
CPUS = {"resourcesPerNode": {"requests": {"cpu": "3"}, "limits": {"nvidia.com/gpu": "0"}}}


def written(*args: str, command: tuple[str, ...] = ("tune", "run"), **trainer: Any) -> list[str]:
    """Return the command line of node 0 on a runtime with two settings of its own, as the cluster would have it."""
    runtime = deepcopy(RUNTIME)
    runtime["metadata"]["name"] = "torchtune-llama3.2-1b"
    kept, dropped = "output_dir=/workspace/output", "dataset.source=parquet"
    container(runtime)["command"] = ["tune", "run", "full_finetune_distributed", kept, dropped]
    job = job_of(trainjob(runtime="torchtune-llama3.2-1b", command=[*command], args=[*args], **trainer), runtime)
    environment = job.environment(0, 0, "job", "run", f"{job.name}-node-0-0.{job.name}", 29500)
    return [expand(word, environment) for word in job.argv]


@pytest.mark.parametrize(
    ("args", "trainer", "recipe"),
    [
        ((), ONE, "full_finetune_single_device --config llama3_2/1B_full_single_device"),
        ((), GPUS[1], "full_finetune_single_device --config llama3_2/1B_full_single_device"),
        ((LORA,), GPUS[1], "lora_finetune_single_device --config llama3_2/1B_lora_single_device"),
        ((LORA, QLORA), GPUS[1], "lora_finetune_single_device --config llama3_2/1B_qlora_single_device"),
        ((QLORA,), ONE, "lora_finetune_single_device --config llama3_2/1B_qlora_single_device"),
        ((LORA, QLORA, DORA), ONE, "lora_finetune_single_device --config llama3_2/1B_lora_single_device"),
        ((QLORA, DORA), ONE, "full_finetune_single_device --config llama3_2/1B_full_single_device"),
        (("model.quantize_base=False",), ONE, "full_finetune_single_device --config llama3_2/1B_full_single_device"),
        ((), GPUS[2], f"{ENDPOINT} full_finetune_distributed --config llama3_2/1B_full"),
        ((), CPUS, f"{ENDPOINT} full_finetune_distributed --config llama3_2/1B_full"),
        ((LORA,), {"numProcPerNode": 4}, f"{ENDPOINT} lora_finetune_distributed --config llama3_2/1B_lora"),
        ((QLORA,), GPUS[2], f"{ENDPOINT} lora_finetune_distributed --config llama3_2/1B_qlora"),
        ((), {"numNodes": 2, **ONE}, f"{ENDPOINT} full_finetune_distributed --config llama3_2/1B_full_multinode"),
        ((LORA,), {"numNodes": 2}, f"{ENDPOINT} full_finetune_distributed --config llama3_2/1B_full_multinode"),
    ],
)
def test_trainer_writes_recipe_config_and_address(
    args: tuple[str, ...], trainer: Mapping[str, Any], recipe: str
) -> None:
    assert written(*args, **trainer) == ["tune", "run", *recipe.split(), "output_dir=/workspace/output", *args]


def test_any_other_command_is_left_alone() -> None:
    assert written("epochs=1", command=("tune", "run", "mine")) == ["tune", "run", "mine", "epochs=1"]
    runtime = deepcopy(RUNTIME)
    del runtime["spec"]["mlPolicy"]["torch"]
    assert job_of(trainjob(command=["tune", "run"], args=["epochs=1"]), runtime).argv == ("tune", "run", "epochs=1")


@pytest.mark.parametrize(
    "config", [TorchTuneConfig(epochs=2), TorchTuneConfig(peft_config=LoraConfig(lora_rank=4))], ids=["full", "lora"]
)
def test_the_sdks_job_is_planned_as_its_pod_would_be(config: TorchTuneConfig) -> None:
    rendered = yaml.safe_load_all(CATALOGUE.read_text())
    (runtime,) = (found for found in rendered if found and found["metadata"]["name"] == NAME)
    fetched = Initializer(dataset=Source("hf://tatsu-lab/alpaca"))
    verdict = validate_one(manifests.trainjob(config, "tune", runtime=NAME, initializer=fetched), runtime)
    assert verdict.problems == ()
    assert verdict.plan is not None
    assert (verdict.plan.framework, verdict.plan.method) == ("torchtune", "lora" if config.peft_config else "full")
    # From the runtime's own command, which Trainer replaces but for this.
    settings = {setting.name: setting.value for setting in verdict.plan.settings}
    assert settings["checkpointer.checkpoint_dir"] == "/workspace/model"
