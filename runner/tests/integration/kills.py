"""Kills pods of a local run in a phase of their life, as an eviction (SIGTERM) or a crash (SIGKILL) does."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.tests.integration.jobs import Ended, EndedError, LocalJob, processes_of
from runner.tests.integration.tune_jobs import FULL
from runner.tests.kill_matrix import INITIALIZING, RENDEZVOUS, Case

from stoker.rank.folders import LocalFolder
from stoker.rank.pulse import FINISHING, SAVING, read_beats

# On a busy machine a phase may pass unnoticed.
_TRIES = 3
_SIGTERM_BIT = 1 << (signal.SIGTERM - 1)


@dataclass(frozen=True, slots=True)
class Training:
    """How a framework's jobs are run for the matrix.

    Attributes:
        fixture: the fixture that makes a job of it.
        args: arguments for so many steps, with several checkpoints on the way.
        steps: steps those arguments ask for.
        draft: the folder that the checkpoint of a step is written into. What is left in one that has the name of a
            checkpoint is set aside; another is written over by the next save.
    """

    fixture: str
    args: tuple[str, ...]
    steps: int
    draft: str


FRAMEWORKS = {
    "trl": Training("job", ("--max_steps", "60", "--save_steps", "10"), 60, "checkpoint-{step}"),
    "torchtune": Training(
        "tune",
        ("full_finetune_distributed", f"model={FULL}", "epochs=20", "max_steps_per_epoch=16", "optimizer.lr=1e-4"),
        320,
        ".saving",
    ),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job went that was hit.

    Attributes:
        codes: the exit code of each attempt.
        ended: the run as a whole.
    """

    codes: tuple[int, ...]
    ended: Ended


def strike(case: Case, job: LocalJob) -> Outcome:
    """Start a job, hit it once, let it be restarted, and wait for its end."""
    for _ in range(_TRIES - 1):
        try:
            return _strike(case, job)
        except EndedError:
            shutil.rmtree(job.workspace)
    return _strike(case, job)


def _strike(case: Case, job: LocalJob) -> Outcome:
    process = job.start(*FRAMEWORKS[case.framework].args, nodes=case.nodes)
    runners = job.wait_for(lambda: listening_runners(job, case.nodes), process)
    targets = {node: runners[node] for node in case.killed}
    if case.phase == INITIALIZING:
        _send(case.number, targets.values())
    elif case.phase == RENDEZVOUS:
        job.wait_for(lambda: all(_meets(job, node) for node in targets), process)
        _send(case.number, targets.values())
    else:
        folders = job.wait_for(lambda: _local_folders(job, case.nodes), process)
        ranks = job.wait_for(lambda: _held(case, job, folders), process, every=0.001)
        _send(case.number, targets.values())
        # A container whose first process is killed loses all others at the same moment.
        _send(signal.SIGKILL if case.number is signal.SIGKILL else signal.SIGCONT, ranks)
    ended = job.end(process)
    codes = re.findall(r"^\[stoker\] attempt \d+: \d+ nodes ended with (\d+)", ended.output, re.MULTILINE)
    return Outcome(tuple(int(code) for code in codes), ended)


def _stop(pid: int) -> None:
    """Stop a process, and wait until it stands still: a system call that it is in comes to its end before."""
    _send(signal.SIGSTOP, [pid])
    with suppress(OSError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TZX":
            time.sleep(0.001)


def _send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def listening_runners(job: LocalJob, nodes: int) -> dict[int, int] | None:
    """Return the process id of each node's `stoker run`; None until all of them can be asked to stop.

    As the first process of a container the kernel would not let an earlier SIGTERM through to it.
    """
    found = {node: pid for node, pid in job.runners().items() if _catches_sigterm(pid)}
    return found if len(found) == nodes else None


def _catches_sigterm(pid: int) -> bool:
    try:
        (caught,) = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except (OSError, ValueError):
        return False
    return bool(int(caught, 16) & _SIGTERM_BIT)


def _local_folders(job: LocalJob, nodes: int) -> dict[int, LocalFolder] | None:
    """Return the local folder of each node's runner once it has a launcher."""
    found = {
        int(environ["PET_NODE_RANK"]): LocalFolder(Path(environ["STOKER_PLAN"]).parent)
        for environ in processes_of(job.folder).values()
        if "STOKER_PLAN" in environ and "PET_NODE_RANK" in environ
    }
    return found if len(found) == nodes else None


def _meets(job: LocalJob, node: int) -> bool:
    """Return whether a node's launcher runs but has no training process yet: it looks for the others."""
    return any(
        environ.get("PET_NODE_RANK") == str(node) and "STOKER_PLAN" in environ and "RANK" not in environ
        for environ in processes_of(job.folder).values()
    )


def _held(case: Case, job: LocalJob, folders: dict[int, LocalFolder]) -> list[int] | None:
    """Hold the ranks of the nodes to be hit in their phase; None, and none is held, while they are not in it."""
    held: list[int] = []
    for node in case.killed:
        for rank, beat in read_beats(folders[node].ranks).items():
            if beat.phase == case.phase:
                _stop(beat.pid)
                held.append(beat.pid)
                beat = read_beats(folders[node].ranks)[rank]
            if beat.phase != case.phase or not _worth_a_kill(case, job, beat.step):
                _send(signal.SIGCONT, held)
                return None
    return held if len(held) == len(case.killed) else None


def _worth_a_kill(case: Case, job: LocalJob, step: int) -> bool:
    sealed, training = job.sealed(), FRAMEWORKS[case.framework]
    if case.phase == FINISHING:
        return not (job.output / "stoker.json").exists()
    if case.phase == SAVING:
        # Not the first: there is one to fall back to. Not the last either. And there is something of it.
        begun = (job.output / training.draft.format(step=step)).is_dir()
        return bool(sealed) and begun and step not in sealed and step < training.steps
    return bool(sealed)
