"""Two processes that share the model's state train the same model as two that each hold all of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from runner.tests.integration.jobs import LocalJob

STEPS = ("--max_steps", "10", "--save_steps", "5", "--logging_steps", "1", "--learning_rate", "5e-3")
# Dropout shows whether a layer that is computed again drops what it dropped before.
ADAPTER = ("--use_peft", "--lora_r", "8", "--lora_dropout", "0.2")
SHARDED = {"STOKER_SHARDING": "full"}
# Loads what a run left as its users do, and prints the largest difference between the weights of two runs.
COMPARE = """
import sys
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM
kind, *folders = sys.argv[1:]
load = {"adapter": AutoPeftModelForCausalLM, "model": AutoModelForCausalLM}[kind].from_pretrained
one, two = (dict(load(folder).named_parameters()) for folder in folders)
assert one.keys() == two.keys()
print(max(float((one[name] - two[name]).abs().max()) for name in one))
"""


def losses(job: LocalJob) -> list[float]:
    """Return the loss of each step."""
    state = json.loads((job.output / "checkpoint-10" / "trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["model", "adapter"])
def test_a_sharded_run_leaves_the_model_of_a_whole_one(
    trainer_python: Path, inputs: Path, tmp_path: Path, kind: str
) -> None:
    args = (*STEPS, *(ADAPTER if kind == "adapter" else ()))
    jobs = {}
    for name, env in (("whole", {}), ("sharded", SHARDED)):
        (tmp_path / name).mkdir()
        jobs[name] = LocalJob(trainer_python, inputs, tmp_path / name)
        ended = jobs[name].run(*args, processes=2, command=["stoker", "run"], env=env)
        assert ended.code == 0, ended.output
    whole, sharded = jobs["whole"], jobs["sharded"]

    parts = {path.name for path in (sharded.output / "checkpoint-10").rglob("*.distcp")}
    assert parts == {"__0_0.distcp", "__1_0.distcp"}
    assert not [*whole.output.rglob("*.distcp")]
    assert losses(sharded) == pytest.approx(losses(whole), rel=1e-3)
    assert sharded.manifest()["fingerprint"]["sharding"] == "full"

    folders = [str(job.output) for job in (whole, sharded)]
    compared = subprocess.run(
        [trainer_python, "-c", COMPARE, kind, *folders], check=True, capture_output=True, text=True, env=whole.environ
    )
    assert float(compared.stdout) < 1e-3
