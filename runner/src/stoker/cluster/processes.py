"""Containers as processes of this machine: starts them together, passes a stop on, and waits for all."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

from stoker.cluster.pods import NodeJob, expand, rewritten
from stoker.cluster.screen import Show, show_plainly
from stoker.cluster.substitutes import local_uri
from stoker.contract.exits import PRECEDENCE, ExitCode, RunError
from stoker.contract.words import say

# Time that the runner needs after its grace period, before it is killed.
_MARGIN_SECONDS = 5.0
# Between the end of a process that serves the nodes and the start of the one in its place.
_REPLACE_SECONDS = 1.0
# For what serves the nodes to end by itself, and remove what it has made.
_TIDY_SECONDS = 15.0
_SHIMS = ("torchrun", "trl", "accelerate", "tune")


@dataclass(frozen=True, slots=True)
class Container:
    """A container to start.

    Attributes:
        title: begins each line of its log.
        job: what it runs.
        rank: its node's rank.
        python: the Python of its environment.
        folders: mount path → folder.
        more: extra variables; those of the job win over them.
    """

    title: str
    job: NodeJob
    rank: int
    python: str
    folders: Mapping[str, str]
    more: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """What all containers of one attempt share, for `NodeJob.environment`."""

    number: int
    job_id: str
    run_id: str
    address: str
    port: int


class Stop:
    """Passes the first SIGINT, SIGTERM or SIGHUP on to all nodes, once. A second SIGINT ends them at once.

    Attributes:
        asked: True after the first signal.
        urgent: True after a second SIGINT.
        nodes: the processes to tell.
        beside: processes that serve the nodes and end after them.
    """

    def __init__(self) -> None:
        self.asked = False
        self.urgent = False
        self.nodes: list[subprocess.Popen[str]] = []
        self.beside: list[subprocess.Popen[str]] = []
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Under `nohup`, a closed terminal is ignored.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._forward)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self.urgent = self.urgent or number == signal.SIGINT
            return
        self.asked = True
        self.pass_on()

    def pass_on(self) -> None:
        """Ask the running nodes to end."""
        for node in self.nodes:
            if node.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(node.pid, signal.SIGTERM)


def run_attempt(
    containers: Sequence[Container],
    job_id: str,
    number: int,
    stop: Stop,
    beside: Sequence[Container] = (),
    show: Show = show_plainly,
) -> ExitCode:
    """Start containers, wait for all, and return the exit code that the JobSet would act on.

    Args:
        containers: what to start.
        job_id: stands for the JobSet's UID.
        number: restarts before this attempt.
        stop: passes signals on to the containers.
        beside: what serves them: it is ended when they have ended, only a final error of its own ends them, and after
            any other end it is started again.
        show: shows each line of what they print.

    Raises:
        RunError: a command is missing.
    """
    attempt = _Attempt(number, job_id, uuid.uuid4().hex, "127.0.0.1", *free_ports(1))
    with tempfile.TemporaryDirectory(prefix="stoker-local-") as scratch:
        stop.nodes, stop.beside = [], []
        readers = []

        def start(container: Container) -> subprocess.Popen[str]:
            process = _start(container, attempt, Path(scratch) / f"termination-log-{container.title}")
            readers.append(threading.Thread(target=_copy, args=(process.stdout, container.title, show), daemon=True))
            readers[-1].start()
            return process

        try:
            # One by one, so that those that run are known if a later one cannot be started.
            for container in beside:
                stop.beside.append(start(container))
            for container in containers:
                stop.nodes.append(start(container))
            if stop.asked:  # before the nodes existed
                stop.pass_on()
            code = _wait(stop, containers[0].job.grace_seconds, _Replacing(beside, start))
            _tidy(stop)
            return code
        finally:
            for node in (*stop.nodes, *stop.beside):
                if _ended(node) is None:
                    os.killpg(node.pid, signal.SIGKILL)
                    node.wait()
            for reader in readers:
                reader.join(timeout=5)


class _Replacing:
    """Starts what serves the nodes again when it has ended, as a Job replaces the pod of a sampler.

    Args:
        containers: what serves them.
        start: starts one.
    """

    def __init__(self, containers: Sequence[Container], start: Callable[[Container], subprocess.Popen[str]]) -> None:
        self._containers = containers
        self._start = start
        self._ended: dict[int, float] = {}

    def look(self, stop: Stop) -> None:
        """Start each one again that ended a moment ago."""
        for index, process in enumerate(stop.beside):
            if _ended(process) is None:
                continue
            if index not in self._ended:
                self._ended[index] = time.monotonic()
                say(f"{self._containers[index].title} ended with {process.returncode}: starting it again")
            elif time.monotonic() - self._ended[index] > _REPLACE_SECONDS:
                del self._ended[index]
                stop.beside[index] = self._start(self._containers[index])


def _wait(stop: Stop, grace_seconds: int, replacing: _Replacing) -> ExitCode:
    """Wait for all nodes. When one fails, ask the others to stop, as the Job controller does."""
    failed: ExitCode | None = None
    deadline: float | None = None
    while not stop.urgent and None in (ends := [_ended(node) for node in stop.nodes]):
        codes = [_code(node, stop) for node, end in zip(stop.nodes, ends, strict=True) if end is not None]
        codes += [code for one in stop.beside if _ended(one) is not None and (code := _code(one, stop)).is_final]
        bad = [code for code in codes if code is not ExitCode.FINISHED]
        if bad and failed is None:
            failed = min(bad, key=PRECEDENCE.index)
            stop.pass_on()
        if deadline is None and (failed is not None or stop.asked):
            deadline = time.monotonic() + grace_seconds + _MARGIN_SECONDS
            if stop.asked:
                say(f"stopping: {grace_seconds} s to save the work; press Ctrl-C again to end at once")
        if deadline is None:
            replacing.look(stop)
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(0.2)
    if failed is not None:
        return failed
    return min((_code(node, stop) for node in stop.nodes), key=PRECEDENCE.index)


def _tidy(stop: Stop) -> None:
    """Let what served the nodes end, unless the user is in a hurry."""
    for process in stop.beside:
        if _ended(process) is None:
            process.terminate()
    deadline = time.monotonic() + _TIDY_SECONDS
    while not stop.urgent and time.monotonic() < deadline and None in [_ended(process) for process in stop.beside]:
        time.sleep(0.1)


def _ended(node: subprocess.Popen[str]) -> int | None:
    """Return a node's exit code, None while it runs. Its whole process group ends with it, as in a container."""
    if node.returncode is None and os.waitid(os.P_PID, node.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        # Kill before `poll` collects the node: after that its process id may belong to another process.
        os.killpg(node.pid, signal.SIGKILL)
    return node.poll()


def _code(node: subprocess.Popen[str], stop: Stop) -> ExitCode:
    if node.returncode is None:  # it outlived its grace period and will be killed
        return ExitCode.CRASHED
    if stop.asked and node.returncode == -signal.SIGTERM:  # it had no handler at that moment
        return ExitCode.STOPPED
    try:
        return ExitCode(node.returncode)
    except ValueError:
        return ExitCode.CRASHED


def _start(container: Container, attempt: _Attempt, termination_log: Path) -> subprocess.Popen[str]:
    job, folders = container.job, container.folders
    told = job.environment(
        container.rank, attempt.number, attempt.job_id, attempt.run_id, attempt.address, attempt.port
    )
    # In Kubernetes too, a container's `env` wins over its `envFrom`.
    told = {**container.more, **{name: rewritten(value, folders) for name, value in told.items()}}
    if told.get("STORAGE_URI"):
        told["STORAGE_URI"] = local_uri(told["STORAGE_URI"], folders)
    told["STOKER_TERMINATION_LOG"] = str(termination_log)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "STOKER_"))}
    # As in the image, the commands beside this Python come first.
    path = f"{Path(container.python).parent}:{inherited.get('PATH', os.defpath)}"
    argv = _local_argv([rewritten(expand(word, told), folders) for word in job.argv], container.python, path)
    return subprocess.Popen(
        # The kernel ends the job when this command is killed.
        [sys.executable, "-m", "stoker.rank.lifeline", str(os.getpid()), *argv],
        # Each pod has a host name of its own. By it NCCL lets ranks of several nodes share one GPU of this machine.
        env={**inherited, "NCCL_HOSTID": container.title, **told, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # In a new session, so that Ctrl-C reaches only us and we pass it on once.
        start_new_session=True,
    )


def _local_argv(argv: list[str], python: str, path: str) -> list[str]:
    """Return a command for this machine: names that only an image has become calls of a Python.

    Raises:
        RunError: there is no command (64), or this machine does not have it (78).
    """
    if not argv:
        raise RunError(ExitCode.USAGE, "the job has no command: write one in the runtime or in the TrainJob")
    if argv[0] == "stoker":
        return [python, "-m", "stoker", *argv[1:]]
    if argv[0] in _SHIMS:
        return [python, "-m", "stoker.entry.shims", *argv]
    if argv[0] in ("python", "python3"):
        return [python, *argv[1:]]
    program = shutil.which(argv[0], path=path)
    if program is None:
        raise RunError(
            ExitCode.CONFIG, f"the job's command {argv[0]!r} is not installed here: install it, or put it on the PATH"
        )
    return [program, *argv[1:]]


def _copy(stream: IO[str] | None, title: str, show: Show) -> None:
    for line in stream or ():
        show(title, line.removesuffix("\n"))


def free_ports(count: int) -> list[int]:
    """Return different ports of this machine that nobody listens at."""
    with ExitStack() as held:
        # Held together: the kernel may give a port that was just let go a second time.
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
