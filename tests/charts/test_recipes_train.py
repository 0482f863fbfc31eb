"""The recipes train from their initializers to their results: tiny models on CPUs, nothing is downloaded."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from runner.tests.integration.environments import environment, made_once
from runner.tests.integration.jobs import leftovers

from builders import replicated_jobs
from charts.helm import ROOT, TRAINING_RUNTIMES, render
from charts.runtimes import runtimes

pytestmark = pytest.mark.full  # needs the environments of all images that take part

RECIPES = ROOT / "examples" / "recipes"
INPUTS = Path(__file__).with_name("recipe_inputs.py")
# What a tiny model on a CPU needs less of, by recipe.
LESS = {
    "chat-lora": {"MAX_STEPS": "4", "EVAL_STEPS": "2", "SAVE_STEPS": "2", "LOGGING_STEPS": "1"},
    "dpo-8b": {"MAX_STEPS": "2", "SAVE_STEPS": "2", "LOGGING_STEPS": "1"},
    "grpo-math": {"MAX_STEPS": "3", "SAVE_STEPS": "3", "MAX_COMPLETION_LENGTH": "24"},
}
# Numbers that a step of the recipe has.
SHOWN = {
    "chat-lora": {"loss", "mean_token_accuracy"},
    "dpo-8b": {"loss", "rewards/margins", "rewards/accuracies"},
    "grpo-math": {"loss", "reward", "staleness/max", "rewards/boxed_answer/mean"},
}


def shortened(name: str, inputs: Path) -> dict[str, Any]:
    """Return a recipe that fetches from this machine and asks for no GPU."""
    job: dict[str, Any] = yaml.safe_load((RECIPES / name / "trainjob.yaml").read_text())
    job["spec"]["initializer"] = {
        "model": {"storageUri": f"file://{inputs}/model"},
        "dataset": {"storageUri": f"file://{inputs}/{name}"},
    }
    trainer = job["spec"]["trainer"]
    trainer.pop("resourcesPerNode", None)
    told = {item["name"]: item["value"] for item in trainer["env"]}
    told |= {f"STOKER_ARG_{flag}": value for flag, value in LESS[name].items()}
    trainer["env"] = [{"name": key, "value": value} for key, value in told.items()]
    return job


def runtime_of(job: dict[str, Any]) -> dict[str, Any]:
    """Return the catalogue's runtime of a job, for CPUs."""
    wanted = job["spec"]["runtimeRef"]["name"]
    settings = ['accelerator="cpu"', "initializers.enabled=true", f'runtimes={{"{wanted}": {{"enabled": true}}}}']
    (runtime,) = (
        one for one in runtimes(render(TRAINING_RUNTIMES, settings=settings)) if one["metadata"]["name"] == wanted
    )
    for role in replicated_jobs(runtime):
        if role["name"] == "sampler":
            (container,) = role["template"]["spec"]["template"]["spec"]["containers"]
            # To compile the model takes longer than these runs.
            container["args"] += ["--enforce-eager", "--max-num-seqs=32"]
    return dict(runtime)


@pytest.mark.parametrize("name", LESS)
def test_a_recipe_trains_what_it_fetches_to_a_result(name: str, tmp_path: Path) -> None:
    trl, vllm = environment("trl"), environment("vllm", runner=False)
    inputs = made_once("trl", trl, INPUTS)
    job = shortened(name, inputs)
    # Not as YAML: in that, PyYAML and Kubernetes read a bare 5e-6 differently.
    (tmp_path / "trainjob.yaml").write_text(json.dumps(job))
    (tmp_path / "runtime.yaml").write_text(json.dumps(runtime_of(job)))
    workspace = tmp_path / "workspace"
    done = subprocess.run(
        [
            *(trl, "-m", "stoker", "local", tmp_path / "trainjob.yaml"),
            *("--runtime", tmp_path / "runtime.yaml", "--workspace", workspace),
            *("--python", f"vllm={vllm}"),
            *(("--volume", f"rewards={RECIPES / name}") if name == "grpo-math" else ()),
        ],
        env={
            **os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        },
        check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:]
    assert leftovers(tmp_path) == []
    output = workspace / "output"
    manifest = json.loads((output / "stoker.json").read_text())
    assert (manifest["status"], manifest["steps"]) == ("finished", int(LESS[name]["MAX_STEPS"]))
    assert manifest["base_model"]["name_or_path"] == f"{workspace}/model"
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert steps
    assert all(SHOWN[name] <= line.keys() for line in steps), steps[0]
    assert (output / "adapter_model.safetensors").is_file()
    assert (output / "report.html").is_file()
