"""Runs in every process that torchrun starts: agrees on the checkpoint with the other ranks, then trains.

The command is `python -m stoker.rank.worker`; STOKER_PLAN names the file with the plan.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import os
import sys
import time
from dataclasses import replace
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.variables import PLAN_FILE
from stoker.contract.words import report_traceback, say
from stoker.plan.plan import Plan
from stoker.rank import checkpoints, network
from stoker.rank.accelerator import check_device, check_trainers_device
from stoker.rank.endings import ending_of
from stoker.rank.folders import LocalFolder, RankStatus, SharedFolder, Verdict
from stoker.rank.lifeline import end_with_parent
from stoker.rank.pulse import Pulse
from stoker.rank.same_run import notices

# Recorded in the manifest if installed, because it provides 4-bit weights and 8-bit optimizers.
_WHERE_INSTALLED = ("bitsandbytes",)


def main() -> int:
    """Train as one rank and return the exit code; the rank's status file has the reason."""
    end_with_parent()
    # A crash in C code prints where each thread was: without, the log says nothing of it.
    faulthandler.enable()
    plan, local = read_plan()
    status = RankStatus(rank=int(os.environ.get("RANK", "0")), pid=os.getpid(), phase="starting")
    local.write_status(status)
    started = time.monotonic()
    result: dict[str, object] = {}
    try:
        result = _train(plan, local, status, started)
        verdict = Verdict(ExitCode.FINISHED, "finished")
    except BaseException as error:  # noqa: BLE001 - whatever ends a rank, its status must say why
        verdict = ending_of(error, plan.flag_names, plan.attempt, Path(plan.output_dir))
        if verdict.code is ExitCode.CRASHED:
            report_traceback()
        else:
            say(f"rank {status.rank}: {verdict.message}")
    local.write_status(
        replace(
            status,
            phase="ended",
            code=int(verdict.code),
            message=verdict.message,
            primary=verdict.primary,
            result=result,
        )
    )
    return verdict.code


def read_plan() -> tuple[Plan, LocalFolder]:
    """Return the plan of this process, and the pod's folder with it.

    Raises:
        RunError: there is no plan, because `stoker run` did not start this module (64).
    """
    path = Path(os.environ.get(PLAN_FILE, ""))
    plan = Plan.read(path)
    if plan is None:
        raise RunError(ExitCode.USAGE, f"{PLAN_FILE} names no readable file: start training with `stoker run`")
    return plan, LocalFolder(path.parent)


def _train(plan: Plan, local: LocalFolder, status: RankStatus, started: float) -> dict[str, object]:
    """Run the framework's trainer to its end and return the result.

    Raises:
        RunError, StopRequested, and whatever the trainer raises.
    """
    # Without a runtime, the plan's accelerator is a guess from the devices.
    is_guess = not os.environ.get("STOKER_ACCELERATOR")
    # Before torch loads NCCL.
    nccl_log = local.path / f"nccl-{status.rank}.log"
    between_nodes = plan.accelerator == "nvidia" and plan.world.nnodes > 1 and network.keep_log(os.environ, nccl_log)
    check_device(plan.accelerator, int(os.environ.get("LOCAL_RANK", "0")), is_guess)

    import torch.distributed

    from stoker.rank.guard import Identity, guard
    from stoker.rank.job import Job, Outcome

    torch.distributed.destroy_process_group = _leave_group_to_the_exit
    trainer = importlib.import_module(plan.training)
    # Not every framework's module has it.
    if check := getattr(trainer, "check", None):
        check(plan)
    checkpoint = _agree_on_checkpoint(plan, status.rank)
    identity = Identity(plan.hash, plan.image_version)
    shared = SharedFolder(Path(plan.workspace), plan.run_id, plan.world.node_rank)

    def check_process(device: torch.device | None = None) -> None:
        if device is not None:
            check_trainers_device(plan.accelerator, device, is_guess)
        guard(plan.world.size, identity, shared.path)

    first_step = started

    def began_training() -> None:
        nonlocal first_step
        first_step = time.monotonic()
        local.write_status(replace(status, phase="training"))
        if between_nodes and status.rank == 0 and (transport := network.read_transport(nccl_log)):
            say(network.sentence(transport))

    job = Job(
        plan,
        checkpoint,
        guard=check_process,
        stop_flag=local.stop_flag,
        pulse=Pulse(local.ranks, status.rank),
        on_training=began_training,
    )
    outcome: Outcome = trainer.train(job)

    if not outcome.finished:
        raise RunError(
            ExitCode.CRASHED,
            f"{plan.module} ended early, after step {outcome.step} of {outcome.total}: see the log",
        )
    return {
        "steps": outcome.step,
        "max_steps": outcome.total,
        "metrics": outcome.metrics,
        "world_size": plan.world.size,
        "resumed_from": checkpoint.name if checkpoint else None,
        "transport": network.read_transport(nccl_log) if between_nodes else None,
        "seconds": round(time.monotonic() - started, 1),
        "training_seconds": round(time.monotonic() - first_step, 1),
        "versions": {name: found for name in (*plan.packages, *_WHERE_INSTALLED) if (found := _version(name))},
    }


def _leave_group_to_the_exit(*_: Any, **__: Any) -> None:
    """Replaces `destroy_process_group`: wait for the others, and let the end of the process free the group.

    Destroying a gloo group can deadlock (torch 2.13): the main thread joins the group's threads with the GIL held,
    while one of them needs the GIL to drop the tensors of its last collective.
    """
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.barrier()


def leave(code: int) -> NoReturn:
    """End the process after its exit handlers have run, without the destructors that would destroy the group."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _agree_on_checkpoint(plan: Plan, rank: int) -> Path | None:
    """Let rank 0 choose the checkpoint and set aside what the run does not go on from, and return its choice.

    Raises:
        RunError: this run cannot resume from the checkpoint (78), or rank 0 did not answer (69).
    """
    if plan.world.size == 1:
        return _choose_checkpoint(plan)
    from torch.distributed import DistError, TCPStore

    # The launcher on node 0 has a store at the rendezvous address; the process group does not exist yet.
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=plan.rendezvous_seconds))
    key = f"stoker/checkpoint/{plan.run_id}"
    if rank == 0:
        try:
            checkpoint = _choose_checkpoint(plan)
        except RunError as error:
            store.set(key, f"{int(error.code)} {error.message}")
            raise
        store.set(key, f"0 {checkpoint or ''}")
        return checkpoint
    try:
        code, _, text = store.get(key).decode().partition(" ")
    except DistError as error:
        raise RunError(ExitCode.UNAVAILABLE, f"rank 0 did not choose a checkpoint: {error}") from error
    if code != "0":
        raise RunError(ExitCode(int(code)), text)
    return Path(text) if text else None


def _choose_checkpoint(plan: Plan) -> Path | None:
    workspace, output = Path(plan.workspace), Path(plan.output_dir)
    anew = checkpoints.starts_anew(workspace, output, plan.resume, plan.job_id, plan.attempt)
    checkpoint, aside = checkpoints.choose(output, plan.record, plan.resume, anew, plan.sources)
    for path, reason in aside:
        say(f"{path.name} set aside as {checkpoints.set_aside(path).name}: {reason}")
    # The manifest means "finished", so it must go before training continues. It goes no earlier than here, because
    # plans follow it: the launchers start their processes only after all nodes, each with its plan, have met.
    checkpoints.retire_output(output)
    if anew:
        checkpoints.record_anew(workspace, output, plan.job_id)
    if checkpoint is None:
        say("starting at step 0")
        return None
    say(f"resuming from {checkpoint.path}")
    for notice in notices(checkpoint.path.name, checkpoint.record or {}, plan.record, plan.free):
        say(notice)
    return checkpoint.path


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    leave(main())
