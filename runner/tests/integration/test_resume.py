"""A checkpoint holds all there is: a run that was killed goes on as if it had never been."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from runner.tests.integration.jobs import LocalJob

STEPS = 60
# Dropout draws from every rank's random numbers at each step; the order of the data from those of the run.
FLAGS = ("--max_steps", str(STEPS), "--save_steps", "10", "--logging_steps", "1", "--lora_dropout", "0.2")
PARALLEL = {"DDP": {}, "FSDP2": {"STOKER_SHARDING": "full"}}


def history(job: LocalJob) -> dict[int, tuple[float, float, float]]:
    """Return loss, gradient norm and learning rate of each step, as the last checkpoint remembers them."""
    state = json.loads((job.output / f"checkpoint-{STEPS}" / "trainer_state.json").read_text())
    return {
        entry["step"]: (entry["loss"], entry["grad_norm"], entry["learning_rate"])
        for entry in state["log_history"]
        if "loss" in entry
    }


@pytest.mark.full
@pytest.mark.parametrize("parallel", ["DDP", "FSDP2"])
def test_a_resumed_run_and_an_uninterrupted_one_agree_step_by_step(
    trainer_python: Path, inputs: Path, tmp_path: Path, parallel: str
) -> None:
    jobs = []
    for name in ("uninterrupted", "resumed"):
        (tmp_path / name).mkdir()
        jobs.append(LocalJob(trainer_python, inputs, tmp_path / name))
    uninterrupted, resumed = jobs
    ended = uninterrupted.run(*FLAGS, processes=2, env=PARALLEL[parallel])
    assert ended.code == 0, ended.output

    process = resumed.start(*FLAGS, processes=2, env=PARALLEL[parallel])
    resumed.wait_for(resumed.sealed, process, every=0.005)
    os.kill(resumed.ranks()[1], signal.SIGKILL)
    ended = resumed.end(process)
    assert ended.code == 0, ended.output
    manifest = resumed.manifest()
    assert (manifest["attempt"], manifest["world_size"]) == (1, 2)
    assert manifest["resumed_from"] is not None

    checkpoint = resumed.output / f"checkpoint-{STEPS}"
    assert {path.name for path in checkpoint.glob("rng_state_*.pth")} == {"rng_state_0.pth", "rng_state_1.pth"}
    optimizer = "optimizer_0" if parallel == "FSDP2" else "optimizer.pt"
    assert {optimizer, "scheduler.pt", "trainer_state.json"} <= {path.name for path in checkpoint.iterdir()}
    assert list(history(uninterrupted)) == list(range(1, STEPS + 1))
    assert history(resumed) == history(uninterrupted)
    kept = [{line["step"]: line["loss"] for line in job.metrics()} for job in jobs]
    assert kept[0] == kept[1]
    assert [line["step"] for line in resumed.metrics()] == list(range(1, STEPS + 1)), "each step once"
