"""What a run leaves behind: the last error, the record of crashes, the report, and the output manifest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode
from stoker.contract.files import read_json, write_json
from stoker.contract.manifest import LAST_ERROR, write_manifest
from stoker.contract.metrics import REPORT
from stoker.contract.secrets import hide
from stoker.contract.words import say, timestamp
from stoker.plan.plan import Plan
from stoker.rank.checkpoints import newest_step
from stoker.rank.folders import Verdict

# Not in the last error: a node that only lost its peers may write that file before the node with the cause reads it.
_CRASHES = ".stoker/crashes.json"
# Described in contract/schemas/last-error-v1.json.
LAST_ERROR_VERSION = 1


def settle_crash(plan: Plan, verdict: Verdict) -> Verdict:
    """Record a crash of this node. Two crashes without a new checkpoint between them stop the retries.

    Returns:
        the verdict; a final one (78) if the previous attempt crashed at the same checkpoint.
    """
    if verdict.code is not ExitCode.CRASHED or not verdict.primary:
        return verdict
    path = Path(plan.workspace) / _CRASHES
    step = newest_step(Path(plan.output_dir))
    record = read_json(path)
    # Attempt → the newest checkpoint at its crash. Several nodes may crash at once, so each adds to the record.
    steps = record.get("steps", {}) if isinstance(record, dict) and record.get("job_id") == plan.job_id else {}
    if plan.attempt == 0:
        steps = {}
    try:
        write_json(path, {"job_id": plan.job_id, "steps": {**steps, str(plan.attempt): step}})
    except OSError as problem:
        say(f"{path} could not be written: {problem}")
    if steps.get(str(plan.attempt - 1)) == step:
        return Verdict(
            ExitCode.CONFIG,
            f"crashed twice without a new checkpoint between the crashes (newest: step {step}), so it is not retried: "
            f"{verdict.message}",
        )
    return verdict


def write_last_error(plan: Plan, verdict: Verdict) -> None:
    """Record the failure in the workspace, where it outlives the pod. The node with the cause wins over the others."""
    path = Path(plan.output_dir) / LAST_ERROR
    before = read_json(path)
    if not verdict.primary and isinstance(before, dict) and before.get("run_id") == plan.run_id:
        return
    error = {
        "schemaVersion": LAST_ERROR_VERSION,
        "code": int(verdict.code),
        "meaning": verdict.code.meaning,
        "message": hide(verdict.message),
        "time": timestamp(),
        "node_rank": plan.world.node_rank,
        "attempt": plan.attempt,
        "run_id": plan.run_id,
        "checkpoint_step": newest_step(Path(plan.output_dir)),
    }
    try:
        write_json(path, error)
    except OSError as problem:
        say(f"{path} could not be written: {problem}")


def write_run_manifest(plan: Plan, result: Mapping[str, Any]) -> dict[str, Any]:
    """Write the manifest of a run that has finished.

    Args:
        plan: the run.
        result: the result that rank 0 reported.

    Returns:
        the manifest.

    Raises:
        OSError: the output folder cannot be written to.
    """
    return write_manifest(Path(plan.output_dir), _described(plan, result))


def write_run_report(plan: Plan, result: Mapping[str, Any]) -> None:
    """Write the report of a run that has finished. If that fails, the run is finished all the same.

    Args:
        plan: the run.
        result: the result that rank 0 reported.
    """
    try:
        # Not at the start: while others train, this process holds as little as it can.
        from stoker.report.write import write_report

        write_report(Path(plan.output_dir), {**_described(plan, result), "time": timestamp()})
    except Exception as error:  # noqa: BLE001 - nothing in a picture is worth a run
        say(f"warning: {REPORT} could not be written ({type(error).__name__}: {error}); the run is not affected")


def _described(plan: Plan, result: Mapping[str, Any]) -> dict[str, Any]:
    reported = ("steps", "max_steps", "seconds", "training_seconds", "resumed_from", "metrics")
    return {
        "framework": plan.framework,
        "method": plan.method,
        "run_id": plan.run_id,
        "attempt": plan.attempt,
        "image_version": plan.image_version,
        **{name: result[name] for name in (*reported, "world_size", "versions")},
        # Of several nodes with GPUs, where NCCL says it.
        **({"transport": result["transport"]} if result.get("transport") else {}),
        "nodes": plan.world.nnodes,
        "processes_per_node": plan.world.nproc_per_node,
        **plan.record,
        "budget": plan.budget,
        "base_model": {"name_or_path": plan.base_model[0], "revision": plan.base_model[1]},
    }
