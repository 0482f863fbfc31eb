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
from pathlib import Path
from types import FrameType
from typing import IO

from stoker.exits import PRECEDENCE, ExitCode, RunError
from stoker.manifests import Manifest, read_documents, volume_folders
from stoker.report import say
from stoker.trainjob import Job, expand, job_of, rewritten

_WORKSPACE_VOLUME = "initializer"
# What the runner itself needs after the grace period it was told, before it is killed.
_MARGIN_SECONDS = 5.0
_SHIMS = ("torchrun", "trl", "accelerate", "tune")


def run(trainjob: Path, runtime: Path, workspace: Path, volumes: Sequence[str]) -> ExitCode:
    """Run a TrainJob to its end, restarts included.

    Args:
        trainjob: file with the TrainJob.
        runtime: file with its rendered runtime.
        workspace: folder in the place of the workspace volume; made if missing.
        volumes: `NAME=DIR`, a folder in the place of another volume of the pods.

    Returns:
        the job's exit code.

    Raises:
        RunError: a file or an option is not what it must be.
    """
    job = job_of(_manifest(trainjob, "TrainJob"), _manifest(runtime, "TrainingRuntime"))
    folders = _folders(job, workspace, volumes)
    try:
        workspace.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            ExitCode.CONFIG,
            f"--workspace {workspace} cannot be made ({error.strerror}): name a folder you may write to",
        ) from error
    stop = _Stop()
    job_id = uuid.uuid4().hex
    restarts = counted = 0
    while True:
        code = _attempt(job, job_id, folders, restarts, stop)
        say(f"attempt {restarts}: {job.nodes} nodes ended with {int(code)} ({code.meaning})")
        if code is ExitCode.FINISHED or code.is_final or stop.asked:
            return code
        if code is not ExitCode.STOPPED:
            counted += 1
        if counted > job.max_restarts:
            say(f"no restart left of {job.max_restarts}")
            return code
        restarts += 1


class _Stop:
    """Passes the first SIGINT or SIGTERM on to all nodes, once."""

    def __init__(self) -> None:
        self.asked = False
        self.nodes: list[subprocess.Popen[str]] = []
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._forward)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            return
        self.asked = True
        self.pass_on()

    def pass_on(self) -> None:
        """Ask the nodes that still run to end."""
        for node in self.nodes:
            if node.poll() is None:
                node.send_signal(signal.SIGTERM)


def _attempt(job: Job, job_id: str, folders: Mapping[str, str], attempt: int, stop: _Stop) -> ExitCode:
    """Start every node, wait for all, and return the code the JobSet would see first."""
    port, run_id = _free_port(), uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="stoker-local-") as scratch:
        stop.nodes = []
        readers = []
        try:
            for rank in range(job.nodes):
                log = Path(scratch) / f"termination-log-{rank}"
                stop.nodes.append(_start(job, rank, folders, log, (attempt, job_id, run_id, "127.0.0.1", port)))
                prefix = f"[node-{rank}] "
                readers.append(threading.Thread(target=_copy, args=(stop.nodes[-1].stdout, prefix), daemon=True))
                readers[-1].start()
            if stop.asked:  # before there were nodes to tell
                stop.pass_on()
            return _wait(stop, job.grace_seconds)
        finally:
            for node in stop.nodes:
                if node.poll() is None:
                    os.killpg(node.pid, signal.SIGKILL)
                    node.wait()
            for reader in readers:
                reader.join(timeout=5)


def _wait(stop: _Stop, grace_seconds: int) -> ExitCode:
    """Wait for all nodes. Once one has failed the others are asked to stop, as the Job controller does."""
    failed: ExitCode | None = None
    deadline: float | None = None
    while any(node.poll() is None for node in stop.nodes):
        codes = [_code(node) for node in stop.nodes if node.returncode is not None]
        bad = [code for code in codes if code is not ExitCode.FINISHED]
        if bad and failed is None:
            failed = min(bad, key=PRECEDENCE.index)
            stop.pass_on()
        if deadline is None and (failed is not None or stop.asked):
            deadline = time.monotonic() + grace_seconds + _MARGIN_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(0.2)
    if failed is not None:
        return failed
    return min((_code(node) for node in stop.nodes), key=PRECEDENCE.index)


def _code(node: subprocess.Popen[str]) -> ExitCode:
    if node.returncode is None:  # it did not end in the grace period, and is killed for it
        return ExitCode.CRASHED
    try:
        return ExitCode(node.returncode)
    except ValueError:
        return ExitCode.CRASHED


def _start(
    job: Job,
    node: int,
    folders: Mapping[str, str],
    termination_log: Path,
    surroundings: tuple[int, str, str, str, int],
) -> subprocess.Popen[str]:
    told = job.environment(node, *surroundings)
    told = {name: rewritten(value, folders) for name, value in told.items()}
    told["STOKER_TERMINATION_LOG"] = str(termination_log)
    argv = _local_argv([rewritten(expand(word, told), folders) for word in job.argv])
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "STOKER_"))}
    path = inherited.get("PATH", os.defpath)
    try:
        # A session of its own: Ctrl-C reaches only us, and we pass it on once.
        return subprocess.Popen(
            argv,
            # As in the image, the commands beside this Python come first.
            env={**inherited, "PATH": f"{Path(sys.executable).parent}:{path}", **told},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise RunError(
            ExitCode.CONFIG, f"the job's command {argv[0]!r} cannot be started here: {error.strerror}"
        ) from error


def _local_argv(argv: list[str]) -> list[str]:
    """Return the command with the names that only an image has replaced by what this Python has."""
    if not argv:
        raise RunError(ExitCode.USAGE, "neither the runtime nor the TrainJob names a command")
    if argv[0] == "stoker":
        return [sys.executable, "-m", "stoker", *argv[1:]]
    if argv[0] in _SHIMS:
        return [sys.executable, "-m", "stoker.shims", *argv]
    if argv[0] in ("python", "python3"):
        return [sys.executable, *argv[1:]]
    return [shutil.which(argv[0]) or argv[0], *argv[1:]]


def _copy(stream: IO[str] | None, prefix: str) -> None:
    for line in stream or ():
        # One write per line, so that the nodes' lines do not mix.
        sys.stdout.write(f"{prefix}{line}" if line.endswith("\n") else f"{prefix}{line}\n")
        sys.stdout.flush()


def _folders(job: Job, workspace: Path, volumes: Sequence[str]) -> dict[str, str]:
    """Return mount path → local folder."""
    given = {_WORKSPACE_VOLUME: workspace, **volume_folders(job, volumes)}
    if _WORKSPACE_VOLUME not in job.mounts:
        raise RunError(ExitCode.USAGE, f"the runtime mounts no volume named {_WORKSPACE_VOLUME}")
    return {job.mounts[name]: str(folder.resolve()) for name, folder in given.items()}


def _manifest(path: Path, kind: str) -> Manifest:
    """Return the document of a YAML file whose kind ends with the one wanted.

    Raises:
        RunError: there is none (66 if the file is missing, else 64).
    """
    for document in read_documents(path):
        if str(document.get("kind", "")).endswith(kind):
            return document
    raise RunError(ExitCode.USAGE, f"{path} holds no {kind}: give a manifest of that kind")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
