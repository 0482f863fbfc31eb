"""The time that pods get to stop, and the time that the runner in them counts on. Pure.

A pod cannot read its own grace period: the downward API has no such field. So the runtime tells the runner its own by a
variable. A TrainJob may patch the period, but Trainer refuses the env of its trainer in a patch: the same number must
stand in `spec.trainer.env` as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from stoker.contract.variables import GRACE_PERIOD

_NODE = "node"
_FIELD = "terminationGracePeriodSeconds"


def grace_problem(pods: int, told: int) -> str:
    """Return what is wrong if pods are killed before the runner is done; empty if they are not.

    Args:
        pods: seconds between SIGTERM and SIGKILL.
        told: the seconds that the runner counts on.
    """
    if told <= pods:
        return ""
    fix = f"add {_entry(pods)} to spec.trainer.env" if pods > 0 else f"give them {told} s or more"
    return (
        f"the pods have {pods} s to stop ({_FIELD}), but the runner counts on {told}, so it may be killed while it "
        f"saves: {fix}"
    )


def grace_notice(pods: int, told: int) -> str:
    """Return what to know if the runner does not use all of the pods' time; empty if it does."""
    if told >= pods:
        return ""
    return (
        f"the runner uses {told} of the {pods} s that the pods have to stop: for all of them, add {_entry(pods)} to "
        "spec.trainer.env"
    )


def told_of_grace(trainjob: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return a TrainJob that tells the runner of the grace period that it patches, and what to say of it.

    It stays as it is, and nothing is said, if it patches none, sets the variable itself, or has no `spec.trainer`:
    where that exists, Trainer also sets the number of processes.

    Args:
        trainjob: a TrainJob, valid or not.
    """
    spec = trainjob.get("spec")
    trainer = spec.get("trainer") if isinstance(spec, dict) else None
    pods = patched_grace(trainjob)
    if not pods or not isinstance(spec, dict) or not isinstance(trainer, dict):
        return {**trainjob}, ""
    env = trainer.get("env") or []
    if not isinstance(env, list) or any(isinstance(one, dict) and one.get("name") == GRACE_PERIOD for one in env):
        return {**trainjob}, ""
    entry = {"name": GRACE_PERIOD, "value": str(pods)}
    told = {**trainjob, "spec": {**spec, "trainer": {**trainer, "env": [*env, entry]}}}
    return told, f"added {_entry(pods)} to spec.trainer.env, because a runtimePatch sets {_FIELD}"


def patched_grace(trainjob: Mapping[str, Any]) -> int | None:
    """Return the grace period that a TrainJob patches its nodes with; None if it patches none.

    Args:
        trainjob: a TrainJob, valid or not.
    """
    found = None
    for patch in _items(_at(trainjob, "spec", "runtimePatches")):
        for job in _items(_at(patch, "trainingRuntimeSpec", "template", "spec", "replicatedJobs")):
            seconds = _at(job, "template", "spec", "template", "spec", _FIELD)
            if job.get("name") == _NODE and isinstance(seconds, int) and not isinstance(seconds, bool):
                found = seconds  # of several, the last counts
    return found


def _entry(seconds: int) -> str:
    return f"{{name: {GRACE_PERIOD}, value: {json.dumps(str(seconds))}}}"


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _items(value: Any) -> Iterator[Mapping[str, Any]]:
    yield from (item for item in value if isinstance(item, Mapping)) if isinstance(value, list) else ()
