"""What a TrainJob would need: memory by arithmetic, tokens and time from what an earlier run has measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.cluster.assumed import assumed_facts, environment_of, without_unseen
from stoker.cluster.pods import expand, job_of
from stoker.cluster.resources import Resource, name_of
from stoker.cluster.starts import start_of
from stoker.contract.exits import ExitCode, RunError
from stoker.frameworks import get_framework
from stoker.node.read_inputs import read_model
from stoker.plan.interfaces import Estimator, estimator_of
from stoker.plan.plan import Plan
from stoker.plan.resolve import read_request, resolve_plan
from stoker.report.measured import Measured


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run would take.

    Attributes:
        tokens: how many tokens it would train.
        seconds: how long it would train, if the speed grows with the processes.
    """

    tokens: float
    seconds: float


def plan_of(trainjob: Resource, runtime: Resource, model: Path) -> Plan:
    """Return the plan of a TrainJob's first node, with what its model needs.

    Args:
        trainjob: the TrainJob.
        runtime: its runtime.
        model: a folder with the model's config.json.

    Raises:
        RunError: the TrainJob is wrong, or does not start `stoker`.
    """
    job, _ = without_unseen(job_of(trainjob, runtime))
    environment = environment_of(job, 0)
    start = start_of([expand(word, environment) for word in job.argv], environment)
    if start is None or start.launch is None:
        raise RunError(
            ExitCode.USAGE, f"{name_of(trainjob)} does not start its trainer by stoker, so that nothing can be counted"
        )
    facts = assumed_facts(job, environment)
    request = read_request(facts, get_framework(facts.get("STOKER_FRAMEWORK")), start.launch.args, start.launch.world)
    return resolve_plan(request, model=read_model(model))


def forecast(plan: Plan, measured: Measured) -> Forecast | None:
    """Return what a run would take by the measure of another; None if the two cannot be compared.

    Args:
        plan: the run.
        measured: another run on the same data, with the same model and method, on the same kind of devices.
    """
    tokens = None
    epochs, before = plan.budget.get("epochs"), measured.budget.get("epochs")
    estimator = estimator_of(get_framework(plan.framework))
    # An epoch that ends after some steps is no measure of one that is all rows.
    limit, measured_limit = (estimator.steps_per_epoch(record) for record in (plan.record, measured.record))
    steps = plan.budget.get("steps") or (epochs * limit if epochs and limit else None)
    rows = _rows_ratio(estimator, plan, measured)
    if steps and rows:
        tokens = measured.tokens / measured.steps * rows * steps
    elif epochs and before and not limit and not measured_limit:
        tokens = measured.tokens * epochs / before
    if tokens is None:
        return None
    return Forecast(tokens, tokens / (measured.tokens_per_second * plan.world.size / measured.processes))


def peak_bytes(plan: Plan, measured: Measured) -> int | None:
    """Return how much of a device a run needs by the measure of another; None if a device holds something else then."""
    rows = _rows_ratio(estimator_of(get_framework(plan.framework)), plan, measured)
    if measured.peak_gib is None or rows != 1 or measured.record["fingerprint"] != plan.record["fingerprint"]:
        return None
    return round(measured.peak_gib * 2**30)


def _rows_ratio(estimator: Estimator, plan: Plan, measured: Measured) -> float | None:
    """Return how many rows a step trains for each row of a measured step; None if nobody knows."""
    new, old = (estimator.rows_per_step(plan.method, record) for record in (plan.record, measured.record))
    return plan.world.size / measured.processes * new / old if new and old else None


def described(plan: Plan, measured: Measured | None) -> Mapping[str, Any]:
    """Return tokens, time and measured memory as `stoker estimate` tells them."""
    if measured is None:
        return {"tokens": None, "seconds": None, "measured_peak_gib": None}
    found = forecast(plan, measured)
    return {
        "tokens": None if found is None else round(found.tokens),
        "seconds": None if found is None else round(found.seconds),
        "measured_peak_gib": measured.peak_gib,
    }
