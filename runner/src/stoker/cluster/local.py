"""A TrainJob as local processes: one group per node, restarted as the JobSet would, no Kubernetes."""

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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

from stoker.cluster.pods import InitializerJob, NodeJob, expand, initializers_of, job_of, rewritten
from stoker.cluster.read import RUNTIME_KINDS, name_of, of_kind, read_documents, runtime_of, trainjobs_of
from stoker.cluster.substitutes import Substitutes, local_uri, substitutes_of
from stoker.contract.exits import PRECEDENCE, ExitCode, RunError
from stoker.contract.words import say, write_line

# What the runner itself needs after the grace period it was told, before it is killed.
_MARGIN_SECONDS = 5.0
_SHIMS = ("torchrun", "trl", "accelerate", "tune")


@dataclass(frozen=True, slots=True)
class _Container:
    """A container to be started.

    Attributes:
        title: begins each line of its log.
        job: what it runs.
        rank: its node's rank.
        python: the Python of its environment.
        folders: mount path → folder.
        more: variables beside those of the job.
    """

    title: str
    job: NodeJob
    rank: int
    python: str
    folders: Mapping[str, str]
    more: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """What tells one attempt of a job from another, for `NodeJob.environment`."""

    number: int
    job_id: str
    run_id: str
    address: str
    port: int


def run(
    trainjob: Path,
    runtime: Path | None,
    workspace: Path,
    volumes: Sequence[str],
    pythons: Sequence[str] = (),
    secrets: Sequence[str] = (),
) -> ExitCode:
    """Run a TrainJob to its end, initializers and restarts included.

    Args:
        trainjob: file with the TrainJob.
        runtime: file with rendered runtimes; one that is in neither file is read from the cluster.
        workspace: folder in the place of the workspace volume; made if missing.
        volumes: `NAME=DIR`, a folder in the place of another volume of the pods.
        pythons: `FRAMEWORK=PATH`, the Python with that framework in it; `fetch=PATH` for the initializers.
        secrets: `NAME=FILE`, a file of lines `KEY=VALUE` in the place of a secret.

    Returns:
        the job's exit code.

    Raises:
        RunError: a file or an option is not what it must be.
    """
    given = read_documents(trainjob)
    asked, *more = trainjobs_of(given, trainjob)
    if more:
        names = ", ".join(name_of(one) or "?" for one in (asked, *more))
        raise RunError(
            ExitCode.USAGE,
            f"{trainjob} holds {1 + len(more)} TrainJobs, and one is run at a time: {names}; give each a file",
        )
    known = of_kind([*given, *(read_documents(runtime) if runtime else ())], *RUNTIME_KINDS)
    documents = asked, runtime_of(asked, known)
    job, initializers = job_of(*documents), initializers_of(*documents)
    jobs = [job, *(found.job for found in initializers)]
    around = substitutes_of(jobs, workspace, volumes, pythons, secrets)
    try:
        workspace.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            ExitCode.CONFIG,
            f"--workspace {workspace} cannot be made ({error.strerror}): name a folder you may write to",
        ) from error
    for name, path in {name: path for one in jobs for name, path in around.missing(one).items()}.items():
        say(f"the volume {name} at {path} has no folder here: --volume {name}=DIR names one")
    python = around.pythons.get(job.framework, sys.executable)
    nodes = [_Container(f"node-{rank}", job, rank, python, around.folders(job.mounts)) for rank in range(job.nodes)]
    fetched = [(_initializer(found, around), found.backoff_limit) for found in initializers]
    stop = _Stop()
    job_id = uuid.uuid4().hex
    restarts = counted = 0
    while True:
        code = ExitCode.FINISHED
        # As dependsOn has it, the nodes start once the initializers are done.
        for container, backoff_limit in fetched:
            code = _persist(container, backoff_limit, job_id, restarts, stop)
            if code is not ExitCode.FINISHED:
                say(f"attempt {restarts}: {container.title} ended with {int(code)} ({code.meaning})")
                break
        else:
            code = _attempt(nodes, job_id, restarts, stop)
            say(f"attempt {restarts}: {job.nodes} nodes ended with {int(code)} ({code.meaning})")
        if code is ExitCode.FINISHED or code.is_final or stop.asked:
            return code
        if code is not ExitCode.STOPPED:
            counted += 1
        if counted > job.max_restarts:
            say(f"no restart left of {job.max_restarts}")
            return code
        restarts += 1


def _initializer(found: InitializerJob, around: Substitutes) -> _Container:
    if found.secret and found.secret not in around.secrets:
        say(
            f"{found.name}: the secret {found.secret} is in the cluster alone: "
            f"--secret {found.secret}=FILE stands in for it"
        )
    return _Container(
        found.name,
        found.job,
        0,
        around.pythons.get("fetch", sys.executable),
        around.folders(found.job.mounts),
        around.secrets.get(found.secret or "", {}),
    )


def _persist(container: _Container, backoff_limit: int, job_id: str, restarts: int, stop: _Stop) -> ExitCode:
    """Run an initializer, again by itself as its Job would: an interruption is not counted, a user's error is final."""
    failures = 0
    while True:
        code = _attempt([container], job_id, restarts, stop)
        if code is ExitCode.FINISHED or code.is_final or stop.asked:
            return code
        if code is not ExitCode.STOPPED:
            failures += 1
        if failures > backoff_limit:
            return code
        say(f"{container.title} ended with {int(code)} ({code.meaning}): once more")


class _Stop:
    """Passes the first SIGINT, SIGTERM or SIGHUP on to all nodes, once; another SIGINT ends them at once.

    Attributes:
        asked: True once there was one.
        urgent: True once there was another.
        nodes: the processes that are told.
    """

    def __init__(self) -> None:
        self.asked = False
        self.urgent = False
        self.nodes: list[subprocess.Popen[str]] = []
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # `nohup` has a closed terminal ignored.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._forward)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self.urgent = self.urgent or number == signal.SIGINT
            return
        self.asked = True
        self.pass_on()

    def pass_on(self) -> None:
        """Ask the nodes that still run to end."""
        for node in self.nodes:
            if node.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(node.pid, signal.SIGTERM)


def _attempt(containers: Sequence[_Container], job_id: str, number: int, stop: _Stop) -> ExitCode:
    """Start containers, wait for all, and return the code the JobSet would see first."""
    attempt = _Attempt(number, job_id, uuid.uuid4().hex, "127.0.0.1", _free_port())
    with tempfile.TemporaryDirectory(prefix="stoker-local-") as scratch:
        stop.nodes = []
        readers = []
        try:
            for container in containers:
                log = Path(scratch) / f"termination-log-{container.title}"
                stop.nodes.append(_start(container, attempt, log))
                prefix = f"[{container.title}] "
                readers.append(threading.Thread(target=_copy, args=(stop.nodes[-1].stdout, prefix), daemon=True))
                readers[-1].start()
            if stop.asked:  # before there were nodes to tell
                stop.pass_on()
            return _wait(stop, containers[0].job.grace_seconds)
        finally:
            for node in stop.nodes:
                if _ended(node) is None:
                    os.killpg(node.pid, signal.SIGKILL)
                    node.wait()
            for reader in readers:
                reader.join(timeout=5)


def _wait(stop: _Stop, grace_seconds: int) -> ExitCode:
    """Wait for all nodes. Once one has failed the others are asked to stop, as the Job controller does."""
    failed: ExitCode | None = None
    deadline: float | None = None
    while not stop.urgent and None in (ends := [_ended(node) for node in stop.nodes]):
        codes = [_code(node, stop) for node, end in zip(stop.nodes, ends, strict=True) if end is not None]
        bad = [code for code in codes if code is not ExitCode.FINISHED]
        if bad and failed is None:
            failed = min(bad, key=PRECEDENCE.index)
            stop.pass_on()
        if deadline is None and (failed is not None or stop.asked):
            deadline = time.monotonic() + grace_seconds + _MARGIN_SECONDS
            if stop.asked:
                say(f"stopping: {grace_seconds} s to save what there is; Ctrl-C once more ends all at once")
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(0.2)
    if failed is not None:
        return failed
    return min((_code(node, stop) for node in stop.nodes), key=PRECEDENCE.index)


def _ended(node: subprocess.Popen[str]) -> int | None:
    """Return a node's exit code, None while it runs. As in a container, all others of its group end with it."""
    if node.returncode is None and os.waitid(os.P_PID, node.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        # Before it is waited for: after that its number may be another's.
        os.killpg(node.pid, signal.SIGKILL)
    return node.poll()


def _code(node: subprocess.Popen[str], stop: _Stop) -> ExitCode:
    if node.returncode is None:  # it did not end in the grace period, and is killed for it
        return ExitCode.CRASHED
    if stop.asked and node.returncode == -signal.SIGTERM:  # it had no handler for it yet, or no longer
        return ExitCode.STOPPED
    try:
        return ExitCode(node.returncode)
    except ValueError:
        return ExitCode.CRASHED


def _start(container: _Container, attempt: _Attempt, termination_log: Path) -> subprocess.Popen[str]:
    job, folders = container.job, container.folders
    told = job.environment(
        container.rank, attempt.number, attempt.job_id, attempt.run_id, attempt.address, attempt.port
    )
    # envFrom is the weaker one (a container's `env` wins over what a secret brings).
    told = {**container.more, **{name: rewritten(value, folders) for name, value in told.items()}}
    if told.get("STORAGE_URI"):
        told["STORAGE_URI"] = local_uri(told["STORAGE_URI"], folders)
    told["STOKER_TERMINATION_LOG"] = str(termination_log)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "STOKER_"))}
    # As in the image, the commands beside this Python come first.
    path = f"{Path(container.python).parent}:{inherited.get('PATH', os.defpath)}"
    argv = _local_argv([rewritten(expand(word, told), folders) for word in job.argv], container.python, path)
    return subprocess.Popen(
        # Nothing of a job outlives this command, even if it is killed outright.
        [sys.executable, "-m", "stoker.rank.lifeline", str(os.getpid()), *argv],
        env={**inherited, **told, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # A session of its own: Ctrl-C reaches only us, and we pass it on once.
        start_new_session=True,
    )


def _local_argv(argv: list[str], python: str, path: str) -> list[str]:
    """Return the command with the names that only an image has replaced by what a Python has.

    Raises:
        RunError: there is no command (64), or not on this machine (78).
    """
    if not argv:
        raise RunError(ExitCode.USAGE, "neither the runtime nor the TrainJob names a command")
    if argv[0] == "stoker":
        return [python, "-m", "stoker", *argv[1:]]
    if argv[0] in _SHIMS:
        return [python, "-m", "stoker.entry.shims", *argv]
    if argv[0] in ("python", "python3"):
        return [python, *argv[1:]]
    program = shutil.which(argv[0], path=path)
    if program is None:
        raise RunError(
            ExitCode.CONFIG, f"the job's command {argv[0]!r} cannot be started here: there is no such program"
        )
    return [program, *argv[1:]]


def _copy(stream: IO[str] | None, prefix: str) -> None:
    for line in stream or ():
        write_line(sys.stdout, f"{prefix}{line}".removesuffix("\n"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
