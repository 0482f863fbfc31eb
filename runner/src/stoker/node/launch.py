"""Runs a plan on this node: preflight, the launcher as a child process, signals, and the exit code."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import read_json
from stoker.contract.grace import KILL_SECONDS
from stoker.contract.samplers import request_path
from stoker.contract.variables import PLAN_FILE, webhook_of, webhook_problem
from stoker.contract.words import report_traceback, say, write_termination_message
from stoker.node import planning, watchdog, webhook
from stoker.node.idle import IdleWatch
from stoker.node.judge import Evidence, all_ended, judge
from stoker.node.memory import read_memory
from stoker.node.preflight import check_packages, check_start, wait_for_peers
from stoker.node.report import settle_crash, write_last_error, write_run_manifest, write_run_report
from stoker.node.signals import Signals, listen
from stoker.plan.plan import Plan
from stoker.rank import checkpoints
from stoker.rank.endings import ending_of
from stoker.rank.folders import LocalFolder, SharedFolder, Verdict, local_folder, most_telling
from stoker.rank.pulse import Beat, read_beats
from stoker.rank.same_run import changed_settings

_POLL_SECONDS = 0.25
# How often the shared folder is read; it may be on a network filesystem.
_SHARED_POLL_SECONDS = 2.0
# How long a failed node waits for the verdicts of the others: the time they need to notice (_SHARED_POLL_SECONDS,
# _PEER_FAILURE_SECONDS) and to end their processes.
_PEER_WORD_SECONDS = 20.0
# Time for this node's processes to notice that a peer has failed.
_PEER_FAILURE_SECONDS = 10.0
# Time for the launcher to end after every process of this node has reported its end.
_TEARDOWN_SECONDS = 30.0
# Time for the other nodes to report their ranks after this node has noticed a hang.
_HANG_WORD_SECONDS = 10.0
# Least time for torchrun's nodes to meet, even if the last one came late.
_LEAST_RENDEZVOUS_SECONDS = 120


def start(args: Sequence[str], world: Mapping[str, str] | None = None) -> ExitCode:
    """Plan and run a command line, and return the exit code of the pod.

    Args:
        args: the trainer's arguments.
        world: a launcher's options about the world, by torchrun's names.

    Raises:
        RunError: the run is refused.
    """
    signals = listen()
    # Pods with another user share the volume through the group.
    os.umask(0o002)
    try:
        plan = planning.plan_pod(args, world)
    except RunError as error:
        _tell_refusal(error)
        raise
    return run(plan, signals)


def run(plan: Plan, signals: Signals) -> ExitCode:
    """Run a plan to its end on this node and return the exit code of the pod."""
    shared = SharedFolder(Path(plan.workspace), plan.run_id, plan.world.node_rank)
    shared.forget_stops()
    for notice in plan.notices:
        say(f"note: {notice}")
    verdict = _unless_idle(_attempt(plan, shared, signals), shared)
    if verdict.code is not ExitCode.FINISHED:
        own = settle_crash(plan, verdict)
        # Recorded before waiting for the others, because the grace period may end first.
        _record(plan, own)
        verdict = _agree(plan, shared, own, signals)
    # Recorded again, so that the verdict that all nodes agreed on is the last.
    _record(plan, verdict)
    say(f"exit {int(verdict.code)}: {_line(verdict)}")
    _tell_end(plan, verdict, signals)
    return verdict.code


def _tell_refusal(error: RunError) -> None:
    """Tell of a run that was refused before there was a plan; node 0 alone does, as all nodes are refused."""
    if os.environ.get("PET_NODE_RANK", "0") not in ("", "0") or webhook_problem(os.environ):
        return
    about = {"job_id": os.environ.get("STOKER_JOB_ID", ""), "run_id": os.environ.get("STOKER_RUN_ID", "")}
    body = webhook.end_of_run(error.code, error.message, {"run": _trainjob(), **about})
    webhook.tell(webhook_of(os.environ), body)


def _trainjob() -> str:
    """Return the name of the TrainJob, which its JobSet has too; empty outside a cluster."""
    return os.environ.get("JOBSET_NAME", "")


def _tell_end(plan: Plan, verdict: Verdict, signals: Signals) -> None:
    if plan.world.node_rank != 0:
        return
    about = {
        "run": _trainjob(),
        "job_id": plan.job_id,
        "run_id": plan.run_id,
        "attempt": plan.attempt,
        "framework": plan.framework,
        "method": plan.method,
        "output": plan.output_dir,
        "checkpoint_step": checkpoints.newest_step(Path(plan.output_dir)),
    }
    body = webhook.end_of_run(verdict.code, verdict.message, about)
    webhook.tell(webhook_of(os.environ), body, signals.time_left(plan.grace_seconds))


def _unless_idle(verdict: Verdict, shared: SharedFolder) -> Verdict:
    """Return the end of a run that was stopped because nobody needs it: it is not to start again."""
    why = shared.idle() if verdict.code is ExitCode.STOPPED else None
    return verdict if why is None else Verdict(ExitCode.FINISHED, f"{why} ({verdict.message})")


def _record(plan: Plan, verdict: Verdict) -> None:
    write_termination_message(Path(plan.termination_log), _line(verdict))
    if verdict.code is not ExitCode.FINISHED:
        write_last_error(plan, verdict)


def _line(verdict: Verdict) -> str:
    return verdict.message if verdict.code is ExitCode.FINISHED else f"{verdict.code.meaning}: {verdict.message}"


class _PeerFailedError(Exception):
    """Another node failed while this one was preparing."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


def _attempt(plan: Plan, shared: SharedFolder, signals: Signals) -> Verdict:
    """Check, launch and watch; return how this node's part ended."""
    try:
        check_start(plan)
        done = _already_finished(plan)
        if done is not None:
            return Verdict(ExitCode.FINISHED, _finished_before(plan, done))
        # Before the wait, which may be long: no peer brings a package that is missing here.
        check_packages(plan)
        began = time.monotonic()
        wait_for_peers(plan, lambda: _give_up(shared, signals))
        signals.refuse_if_stopped()
        # One deadline for all waiting: torchrun gets the rest of it.
        left = max(_LEAST_RENDEZVOUS_SECONDS, plan.rendezvous_seconds - round(time.monotonic() - began))
        with local_folder() as local:
            return _launch(replace(plan, rendezvous_seconds=left), shared, local, signals)
    except RunError as error:
        return Verdict(error.code, error.message)
    except _PeerFailedError as failed:
        return failed.verdict
    except Exception as error:  # noqa: BLE001 - any other end would have an undocumented exit code
        verdict = ending_of(error, plan.flag_names)
        if verdict.code is ExitCode.CRASHED:
            report_traceback()
        return replace(verdict, message=f"the runner failed: {verdict.message}")


def _finished_before(plan: Plan, manifest: Mapping[str, Any]) -> str:
    message = f"this run has already finished, at step {manifest['steps']}"
    # Manifests of older runners have no settings.
    before = manifest.get("settings")
    changed = changed_settings(before, plan.recorded_settings) if isinstance(before, dict) else []
    if changed:
        message += (
            f"; nothing was trained, although {'; '.join(changed)}: to train with the new values, give this run its "
            "own workspace or output_dir, or set STOKER_RESUME=never"
        )
    return message


def _already_finished(plan: Plan) -> Mapping[str, Any] | None:
    output = Path(plan.output_dir)
    if checkpoints.starts_anew(Path(plan.workspace), output, plan.resume, plan.job_id, plan.attempt):
        return None
    return checkpoints.finished_manifest(output, plan.record, plan.budget, plan.sources)


def _give_up(shared: SharedFolder, signals: Signals) -> None:
    signals.refuse_if_stopped()
    for rank, verdict in shared.verdicts().items():
        if verdict.primary:
            raise _PeerFailedError(Verdict(verdict.code, _by_node(rank, verdict), primary=False))


def _launch(plan: Plan, shared: SharedFolder, local: LocalFolder, signals: Signals) -> Verdict:
    plan.write(local.plan)
    if plan.world.node_rank == 0:
        shared.forget_older_runs()
        if plan.samplers is not None:
            plan.samplers.write(request_path(Path(plan.workspace), plan.job_id, plan.attempt))
    say(
        f"{plan.module} on node {plan.world.node_rank} of {plan.world.nnodes} × {plan.world.nproc_per_node} processes, "
        f"world size {plan.world.size}, attempt {plan.attempt}"
    )
    argv = [sys.executable, "-m", "stoker.node.torchrun", str(local.failures), str(os.getpid()), *plan.torchrun_argv]
    environ = {**os.environ, **plan.env, PLAN_FILE: str(local.plan)}
    memory = read_memory()
    # In a new session, because a signal to our process group must not reach the trainer before we decide.
    child = Child(os.posix_spawn(argv[0], argv, environ, setsid=True))
    with _exposed(plan) as see:
        given_up = _watch(plan, shared, local, signals, child, see)
    verdict = judge(
        Evidence(
            processes=plan.world.nproc_per_node,
            statuses=local.statuses(),
            failures=read_json(local.failures) or (),
            returncode=child.returncode,
            stopped=signals.stopped_at is not None,
            peer=given_up,
            shortage=read_memory().shortage_since(memory, plan.flag_names),
        )
    )
    if verdict.code is ExitCode.FINISHED:
        if plan.world.node_rank == 0:
            result = next(status.result for status in local.statuses() if status.rank == 0)
            # The manifest lists it, and comes last.
            write_run_report(plan, result)
            write_run_manifest(plan, result)
        return Verdict(ExitCode.FINISHED, f"finished: world size {plan.world.size}")
    return verdict


@dataclass(slots=True)
class Child:
    """The launcher's process, leader of its process group.

    Attributes:
        pid: its process id.
        returncode: its exit code, negative for a signal; None while it runs.
    """

    pid: int
    returncode: int | None = None

    def reap(self) -> None:
        """Collect every child that has ended; as PID 1, this process inherits orphans too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.returncode = os.waitstatus_to_exitcode(status)

    def end(self) -> None:
        """Ask the whole group to end, then kill it."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + KILL_SECONDS
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)
            while self.returncode is None and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                self.reap()


@contextmanager
def _exposed(plan: Plan) -> Iterator[Callable[[Mapping[int, Beat]], None]]:
    """Show metrics at the plan's port, if it has one, and yield what takes the newest beats."""
    if not plan.metrics_port:
        yield _see_nothing
        return
    # Not always: a web server is memory that the trainer lacks.
    from stoker.node.exposition import exposed

    with exposed(plan, os.environ) as exposition:
        yield exposition.see


def _see_nothing(beats: Mapping[int, Beat]) -> None:
    """Show the beats to nobody."""


def _watch(
    plan: Plan,
    shared: SharedFolder,
    local: LocalFolder,
    signals: Signals,
    child: Child,
    see: Callable[[Mapping[int, Beat]], None] = _see_nothing,
) -> Verdict | None:
    """Wait for the child and pass a stop on. If a peer fails or the run hangs, end the child and return the verdict."""
    peer: Verdict | None = None
    peer_since = 0.0
    next_look = 0.0
    ended_since: float | None = None
    stopping = False
    dog = watchdog.Watchdog(plan.hang_seconds)
    idle = IdleWatch(plan.idle_seconds if plan.world.node_rank == 0 else 0, os.environ)
    while True:
        child.reap()
        if child.returncode is not None:
            return peer
        now = time.monotonic()
        statuses = local.statuses()
        beats = read_beats(local.ranks)
        hangs = dog.hangs(beats, now)
        idle.beat = beats.get(0)
        see(beats)
        if idle.is_over and not local.stop_flag.exists():
            _end_idle(plan, shared, local)
        if ended_since is None and all_ended(plan.world.nproc_per_node, statuses):
            ended_since = now
        if ended_since is not None and now > ended_since + _TEARDOWN_SECONDS:
            child.end()
            return peer
        if signals.stopped_at is not None:
            training = any(status.phase == "training" for status in statuses)
            late = signals.time_left(plan.grace_seconds) < 2 * KILL_SECONDS
            if not stopping:
                stopping = True
                local.stop_flag.touch()
                say(f"asked to stop: {_saving(training=training, late=late)}")
            # Once all ranks have ended, the launcher ends by itself: a signal now would only interrupt that.
            useless = not training and ended_since is None
            if useless or late:
                child.end()
                return peer
        if peer is None and plan.world.nnodes > 1 and now > next_look:
            next_look = now + _SHARED_POLL_SECONDS
            peer = _failed_peer(shared.verdicts())
            peer_since = now
            hangs = hangs or bool(beats and shared.beats())
        if peer is not None and now > peer_since + _PEER_FAILURE_SECONDS:
            child.end()
            return peer
        if hangs and ended_since is None and not stopping and peer is None:
            watchdog.print_stacks(beats, say)
            verdict = _hang(plan, shared, beats)
            child.end()
            return verdict
        time.sleep(_POLL_SECONDS)


def _saving(*, training: bool, late: bool) -> str:
    """Return what a stop saves."""
    if not training:
        return "nothing to save yet"
    return "no time to save a checkpoint" if late else "saving a checkpoint"


def _end_idle(plan: Plan, shared: SharedFolder, local: LocalFolder) -> None:
    """Have all ranks save and stop, and let every node know why before its ranks end."""
    why = f"no request has reached the samplers for {plan.idle_seconds} s"
    try:
        shared.publish_idle(why)
    except OSError as error:
        say(f"{why}, but the workspace cannot be written to, so the run continues ({error})")
        return
    local.stop_flag.touch()
    say(f"{why}: saving a checkpoint, and ending")


def _hang(plan: Plan, shared: SharedFolder, own: Mapping[int, Beat]) -> Verdict:
    """Exchange the beats of all ranks with the other nodes, and return the verdict that all nodes reach."""
    beats = dict(own)
    if plan.world.nnodes > 1:
        deadline = time.monotonic() + _HANG_WORD_SECONDS
        with suppress(OSError):
            shared.publish_beats(own)
        while len(beats) < plan.world.size and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            beats = {**shared.beats(), **own}
    here = any(rank in own for rank in watchdog.suspects(beats))
    return Verdict(ExitCode.CRASHED, watchdog.describe(beats), primary=here)


def _failed_peer(verdicts: Mapping[int, Verdict]) -> Verdict | None:
    failed = {rank: verdict for rank, verdict in verdicts.items() if verdict.code is not ExitCode.FINISHED}
    if not failed:
        return None
    told = most_telling(list(failed.values()))
    rank = next(rank for rank, verdict in failed.items() if verdict == told)
    return Verdict(told.code, _by_node(rank, told), primary=False)


def _by_node(rank: int, verdict: Verdict) -> str:
    return verdict.message if verdict.message.startswith("node ") else f"node {rank}: {verdict.message}"


def _agree(plan: Plan, shared: SharedFolder, verdict: Verdict, signals: Signals) -> Verdict:
    """Exchange verdicts with the other nodes, and return the one that explains the end best.

    Waits for all nodes, so that every pod exits with the same code, and Kubernetes does not see the echo of a failure
    (a lost peer) before its cause.
    """
    if plan.world.nnodes == 1:
        return verdict
    deadline = time.monotonic() + min(_PEER_WORD_SECONDS, signals.time_left(plan.grace_seconds))
    told: Verdict | None = None
    while True:
        # Read once: a verdict that comes in between would be counted, but not heard.
        others = shared.verdicts()
        peer = _failed_peer(others)
        if peer is not None:
            verdict = most_telling([verdict, peer])
        if verdict != told:
            told = verdict
            try:
                shared.publish(verdict)
            except OSError as error:
                say(f"the other nodes cannot learn of this failure: the workspace cannot be written to ({error})")
                return verdict
        if time.monotonic() > deadline or len(others) == plan.world.nnodes - 1:
            return verdict
        time.sleep(_POLL_SECONDS)
