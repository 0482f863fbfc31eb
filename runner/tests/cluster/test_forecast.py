"""Tokens and time of a run by the measure of another, in the words of each framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from runner.tests.samples import pod, resolve

from stoker.cluster import forecast as module
from stoker.cluster.forecast import Forecast, forecast
from stoker.plan.plan import Plan
from stoker.report.measured import Measured

TUNE = {
    "STOKER_FRAMEWORK": "torchtune",
    "STOKER_METHOD": "",
    "STOKER_ARG_MODEL_NAME_OR_PATH": "",
    "STOKER_ARG_DATASET_NAME": "",
    "STOKER_ARG_CONFIG": "llama3_2/1B",
}


def tune_run(*args: str) -> Plan:
    """Return the plan of a TorchTune run on one process; its config has a batch size of 4 and accumulates 8 of them."""
    return resolve(pod({**TUNE, "PET_NNODES": "1"}), ["lora_finetune_single_device", *args])


def trl_run(*args: str) -> Plan:
    """Return the plan of a run of TRL on one process."""
    return resolve(pod({"PET_NNODES": "1"}), args)


def measure_of(plan: Plan, **told: Any) -> Measured:
    """Return the measure of a finished run: 100 steps in 200 s, 1,000 tokens per second."""
    parts: Mapping[str, Any] = {"budget": plan.budget, "record": plan.record, **told}
    return Measured(1000.0, 100, 200.0, 200_000.0, plan.world.size, None, **parts)


def test_epochs_of_torchtune_are_compared() -> None:
    assert forecast(tune_run("epochs=3"), measure_of(tune_run("epochs=1"))) == Forecast(600_000, 600)


def test_steps_of_torchtune_count_the_rows_of_each() -> None:
    measured = measure_of(tune_run("epochs=1", "max_steps_per_epoch=100"))
    assert forecast(tune_run("epochs=2", "max_steps_per_epoch=50"), measured) == Forecast(200_000, 200)
    # The measured run took the batch size of its config, and this one takes half of it.
    assert forecast(tune_run("epochs=2", "max_steps_per_epoch=50", "batch_size=2"), measured) == Forecast(100_000, 100)
    accumulating = tune_run("epochs=1", "max_steps_per_epoch=100", "gradient_accumulation_steps=16")
    assert forecast(accumulating, measured) == Forecast(400_000, 400)


def test_an_epoch_that_ends_early_is_no_measure_of_a_whole_one() -> None:
    short, whole = tune_run("epochs=1", "max_steps_per_epoch=100"), tune_run("epochs=1")
    assert forecast(whole, measure_of(short)) is None
    # The other way round the steps tell, whatever the measured run was to train.
    assert forecast(short, measure_of(whole)) == Forecast(200_000, 200)


@pytest.mark.parametrize(
    "record", [{"fingerprint": {}, "settings": {}}, {"fingerprint": {"data": "x"}, "settings": {}}]
)
def test_a_run_that_does_not_tell_its_batch_is_no_measure_of_steps(record: Mapping[str, Any]) -> None:
    short = tune_run("epochs=1", "max_steps_per_epoch=100")
    assert forecast(short, measure_of(short, record=record)) is None


def test_a_framework_that_does_not_estimate_is_no_measure_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = trl_run("--max_steps", "100")
    assert forecast(plan, measure_of(plan)) is not None
    monkeypatch.setattr(module, "get_framework", lambda name: object())
    assert forecast(plan, measure_of(plan)) is None


def test_steps_of_trl_count_the_rows_of_each() -> None:
    measured = measure_of(trl_run("--max_steps", "100", "--gradient_accumulation_steps", "4"))
    plan = trl_run("--max_steps", "100", "--gradient_accumulation_steps", "2")
    assert forecast(plan, measured) == Forecast(100_000, 100)
