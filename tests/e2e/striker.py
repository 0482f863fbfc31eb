"""Runs in a pod that sees its node's processes: holds pods of a job in a phase of their life, and lets them be hit.

Started as `python striker.py JOB STEPS SIGNAL PHASE HIT`, as root, with the runner importable. Prints `watching`, and
`held` once the pods numbered HIT of the job are in the phase. With SIGKILL it kills them then, as a kernel short of
memory does; no signal from inside reaches a container's first process. With SIGTERM it waits for somebody to evict or
delete them, and lets them go on once the signal has arrived. Prints `struck` at the end, or `missed` if the phase was
over before it was noticed.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from stoker.rank.folders import LocalFolder
from stoker.rank.pulse import FINISHING, SAVING, read_beats

T = TypeVar("T")
PATIENCE_SECONDS = 900.0
_SIGTERM_BIT = 1 << (signal.SIGTERM - 1)


@dataclass(frozen=True)
class Process:
    """A process of a pod.

    Attributes:
        pid: its id on the node.
        own_pid: its id in the pod.
        environ: its environment.
    """

    pid: int
    own_pid: int
    environ: dict[str, str]

    @property
    def root(self) -> Path:
        """The root of its files."""
        return Path(f"/proc/{self.pid}/root")


class MissedError(Exception):
    """The phase was over before it was noticed."""


class Processes:
    """The processes of the node that were not there when this one started."""

    def __init__(self) -> None:
        self._older = set(process_ids())

    def of(self, host: str) -> Iterator[Process]:
        """Yield those of a pod by its host name, the first one first."""
        now = process_ids()
        # An id may be given again.
        self._older.intersection_update(now)
        for pid in sorted(set(now) - self._older):
            # Processes come and go.
            with suppress(OSError):
                entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if f"HOSTNAME={host}".encode() not in entries:
                    continue
                environ = dict(entry.decode(errors="replace").split("=", 1) for entry in entries if b"=" in entry)
                status = Path(f"/proc/{pid}/status").read_text()
                own = re.findall(r"^NSpid:.*\s(\d+)$", status, re.MULTILINE)
                yield Process(pid, int(own[0]), environ)


def process_ids() -> list[int]:
    """Return the ids of all processes."""
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


class Pod:
    """A pod of the job, found by its name in the environment of its processes."""

    def __init__(self, processes: Processes, job: str, index: int) -> None:
        self.index = index
        self._processes = processes
        self._host = f"{job}-node-0-{index}"
        self.runner: Process | None = None
        self.launcher: Process | None = None
        self.rank: Process | None = None

    def look(self) -> None:
        """Find those of its processes that are not known yet."""
        for process in self._processes.of(self._host):
            if process.own_pid == 1:
                self.runner = process
            elif "STOKER_PLAN" in process.environ and "RANK" not in process.environ:
                # Its children have its environment for a moment.
                self.launcher = self.launcher or process
            elif "RANK" in process.environ:
                self.rank = self.rank or process

    @property
    def local(self) -> LocalFolder:
        """The folder in which its processes say what they do."""
        assert self.launcher is not None
        return LocalFolder(self.launcher.root / Path(self.launcher.environ["STOKER_PLAN"]).parent.relative_to("/"))

    def listens(self) -> bool:
        """Return whether its first process can be asked to stop; before that the kernel lets no SIGTERM through."""
        return self.runner is not None and bool(self._mask("SigCgt") & _SIGTERM_BIT)

    def asked_to_stop(self) -> bool:
        """Return whether its first process was sent SIGTERM, and has passed it on if it could."""
        try:
            stopping = self.launcher is not None and self.local.stop_flag.exists()
            return stopping or bool(self._mask("ShdPnd") & _SIGTERM_BIT)
        except OSError:  # it has ended for it
            return True

    def _mask(self, name: str) -> int:
        assert self.runner is not None
        (mask,) = re.findall(rf"^{name}:\s*(\w+)$", Path(f"/proc/{self.runner.pid}/status").read_text(), re.MULTILINE)
        return int(mask, 16)

    def worth_a_hit(self, phase: str, step: int, steps: int) -> bool:
        """Return whether there is something to lose, and to go on from, at this step of the phase."""
        assert self.rank is not None
        output = self.rank.root / "workspace/output"
        sealed = {int(p.parent.name.split("-")[1]) for p in output.glob("checkpoint-*/stoker-checkpoint.json")}
        if phase == FINISHING:
            return not (output / "stoker.json").exists()
        if phase == SAVING:
            # Not the first: there is one to fall back to. Not the last either. And there is something of it, written
            # under its own name (TRL) or a draft's (TorchTune).
            begun = any((output / name).is_dir() for name in (f"checkpoint-{step}", ".saving"))
            return bool(sealed) and begun and step not in sealed and step < steps
        return bool(sealed)


def hold_early(pod: Pod, phase: str) -> Process | None:
    """Stop what a pod that does not train yet must do next; None if it is not in the phase yet.

    Raises:
        MissedError: the phase is over.
    """
    pod.look()
    process, next_one = (pod.runner, pod.launcher) if phase == "initializing" else (pod.launcher, pod.rank)
    if next_one is not None:
        raise MissedError
    if process is None or not pod.listens():
        return None
    send(signal.SIGSTOP, [process.pid])
    return process


def hold_ranks(pods: Sequence[Pod], phase: str, steps: int) -> list[int] | None:
    """Stop the training processes while all of them are in the phase; None, and none is stopped, while they are not.

    Raises:
        MissedError: one of them has ended.
    """
    held: list[int] = []
    for pod in pods:
        with suppress(OSError, KeyError):  # the phase is not there yet, or the process has ended
            assert pod.rank is not None
            if read_beats(pod.local.ranks)[pod.index].phase == phase:
                stop(pod.rank.pid)
                held.append(pod.rank.pid)
                beat = read_beats(pod.local.ranks)[pod.index]
                if beat.phase == phase and pod.worth_a_hit(phase, beat.step, steps):
                    continue
        send(signal.SIGCONT, held)
        if pod.rank is not None and not Path(f"/proc/{pod.rank.pid}").exists():
            raise MissedError
        return None
    return held


def stop(pid: int) -> None:
    """Stop a process, and wait until it stands still: a system call that it is in comes to its end before."""
    send(signal.SIGSTOP, [pid])
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TZX":
        time.sleep(0.001)


def send(number: signal.Signals, pids: Sequence[int]) -> None:
    """Send a signal to processes, as far as they still run."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def until(probe: Callable[[], T | None], every: float) -> T:
    """Wait for a probe to return something true, and return that."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := probe()):
        if time.monotonic() > deadline:
            raise SystemExit("the pods were never in their phase")
        time.sleep(every)
    return found


def main(job: str, steps: int, signal_name: str, phase: str, hit: Sequence[int]) -> None:
    """Wait for the phase, and hit."""
    processes = Processes()
    pods = [Pod(processes, job, index) for index in hit]
    print("watching", flush=True)
    if phase in ("initializing", "rendezvous"):
        waiting = {pod.index: pod for pod in pods}
        held = []

        def all_held() -> bool:
            for pod in list(waiting.values()):
                with suppress(OSError):
                    if (process := hold_early(pod, phase)) is not None:
                        held.append(process.pid)
                        del waiting[pod.index]
            return not waiting

        try:
            until(all_held, 0.02)
        except MissedError:
            send(signal.SIGCONT, held)  # or their pods could not end before their grace period does
            raise
    else:

        def all_train() -> bool:
            for pod in pods:
                if pod.rank is None:
                    pod.look()
            return all(pod.rank is not None for pod in pods)

        # Looking for processes costs more than looking at what they do.
        until(all_train, 0.2)
        held = until(lambda: hold_ranks(pods, phase, steps), 0.002)
    print("held", flush=True)
    if signal.Signals[signal_name] is signal.SIGKILL:
        send(signal.SIGKILL, [pod.runner.pid for pod in pods if pod.runner])
    else:
        try:
            until(lambda: all(pod.asked_to_stop() for pod in pods), 0.02)
        finally:
            send(signal.SIGCONT, held)
    print("struck", flush=True)


if __name__ == "__main__":
    # A phase may last for milliseconds.
    os.nice(-20)
    try:
        main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], [int(index) for index in sys.argv[5].split(",")])
    except MissedError:
        print("missed", flush=True)
