"""Manifests are what they were before the modules moved, and a checkpoint of then is gone on from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runner.tests.integration.jobs import LocalJob
from runner.tests.integration.tune_jobs import TuneJob
from runner.tests.parity.outcomes import differences
from runner.tests.parity.runs import RUNS, STOPPED, masked, unpack

RECORDS = Path(__file__).parents[1] / "parity"
COMMIT = "869a3b6"
WRITTEN_SINCE = ("metrics.jsonl", "report.html")


def compare(name: str, job: LocalJob) -> None:
    """Run it, and fail if its manifest is another than the one on record."""
    ended = RUNS[name].run(job)
    assert ended.code == 0, ended.output
    before = json.loads((RECORDS / f"manifests-{COMMIT}.json").read_text())[name]
    now = masked(job)
    # Recorded since, and compared on resume.
    assert now.pop("fixed")
    # Recorded since, and no longer than the whole.
    assert 0 < now.pop("training_seconds") < job.manifest()["seconds"]
    # Written since, by every run.
    now["files"] = [file for file in now["files"] if file["path"] not in WRITTEN_SINCE]
    assert differences(before, now) == []


def go_on(image: str, job: LocalJob) -> str:
    """Run to the end what an earlier runner has begun, and return the output."""
    run, step = STOPPED[image]
    unpack(RECORDS / f"checkpoint-{image}-{COMMIT}.tar.xz", job)
    ended = run.run(job)
    assert ended.code == 0, ended.output
    manifest = job.manifest()
    assert (manifest["steps"], manifest["attempt"]) == (2 * step, 0)
    assert manifest["resumed_from"] == f"checkpoint-{step}"
    return ended.output


@pytest.mark.full
@pytest.mark.parametrize("name", ["trl full", "trl lora"])
def test_a_trl_manifest_is_what_it_was(job: LocalJob, name: str) -> None:
    compare(name, job)


@pytest.mark.full
def test_a_torchtune_manifest_is_what_it_was(tune: TuneJob) -> None:
    compare("torchtune lora", tune)


def test_a_run_goes_on_from_an_earlier_runners_checkpoint(job: LocalJob) -> None:
    output = go_on("trl", job)
    assert output.count("checkpoint-5 is from an older Stoker, which did not record ") == 1
    earlier, later = (
        json.loads((job.output / f"checkpoint-{step}" / "trainer_state.json").read_text())["log_history"]
        for step in (5, 10)
    )
    # The loss of step 5, on another base model, is the earlier runner's: no step before was trained again.
    assert [entry["step"] for entry in later if "loss" in entry] == [5, 10]
    assert later[0] == earlier[0]


@pytest.mark.full
def test_a_tune_run_goes_on_from_an_earlier_runners_checkpoint(tune: TuneJob) -> None:
    output = go_on("torchtune", tune)
    assert sorted(tune.losses(output)) == [5, 6, 7, 8]
