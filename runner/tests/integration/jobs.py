"""TrainJobs run by `stoker local` with real trainers, and looks at what they do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.tests.samples import check

from builders import RUNTIME_FILE, trainjob, variables

# For a busy machine; a run takes some 25 s on an idle one, and ten times as long has been seen on two busy processors.
PATIENCE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A local run that has ended."""

    code: int
    output: str


class EndedError(AssertionError):
    """A job ended before something was seen of it."""


class LocalJob:
    """A TrainJob on the CPU runtime, run by `stoker local` in folders of its own.

    Args:
        python: the environment's Python.
        inputs: folder with `model` and `dataset`.
        folder: where everything of this job lies.
    """

    runtime_name = "trl-distributed"
    patience = PATIENCE_SECONDS

    def __init__(self, python: Path, inputs: Path, folder: Path) -> None:
        self.runtime = RUNTIME_FILE
        self.python = python
        self.inputs = inputs
        self.folder = folder
        self.workspace = folder / "workspace"
        self.output = self.workspace / "output"
        self.scratch = folder / "scratch"
        self.scratch.mkdir(exist_ok=True)
        self._log = folder / "log"

    @property
    def usual_args(self) -> list[str]:
        """The trainer's arguments for a short LoRA run."""
        short = ["--max_steps", "20", "--per_device_train_batch_size", "8", "--learning_rate", "5e-3"]
        return [*short, "--use_peft", "--lora_r", "8", "--lora_target_modules", "all-linear"]

    @property
    def usual_env(self) -> dict[str, str]:
        """What a runtime's or a TrainJob's env sets in every run."""
        return {
            "STOKER_ARG_MODEL_NAME_OR_PATH": f"{self.inputs}/model",
            "STOKER_ARG_DATASET_NAME": f"{self.inputs}/dataset",
            "STOKER_ARG_LOGGING_STEPS": "5",
            "STOKER_ARG_SAVE_STEPS": "5",
        }

    @property
    def options(self) -> list[str]:
        """More options of `stoker local`."""
        return []

    @property
    def log(self) -> str:
        """What the run has printed so far."""
        return self._log.read_text(errors="replace")

    @property
    def environ(self) -> dict[str, str]:
        """The environment of the run: everything temporary in this job's folder, no network, one thread each."""
        return {
            **os.environ,
            "TMPDIR": str(self.scratch),
            "HF_HOME": str(self.folder / "hf"),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def start(
        self,
        *args: str,
        nodes: int = 1,
        processes: int = 1,
        command: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start the job with these trainer arguments after those for a short run."""
        told = {**self.usual_env, **(env or {})}
        trainer: dict[str, Any] = {
            "numNodes": nodes,
            "numProcPerNode": processes,
            "args": [*args] if command else [*self.usual_args, *args],
            "env": variables(told),
        }
        if command:
            trainer["command"] = [*command]
        path = self.folder / "trainjob.yaml"
        # JSON is YAML that Kubernetes and PyYAML read alike: bare, 5e-3 is a number to one and text to the other.
        path.write_text(json.dumps(trainjob(runtime=self.runtime_name, **trainer)))
        folders = ["--runtime", str(self.runtime), "--workspace", str(self.workspace)]
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [str(self.python), "-m", "stoker", "local", str(path), *folders, *self.options],
                env=self.environ,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def end(self, process: subprocess.Popen[bytes]) -> Ended:
        """Wait for the job's end."""
        try:
            code = process.wait(self.patience)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(self.patience)
        return Ended(code, self.log)

    def run(self, *args: str, **options: Any) -> Ended:
        """Run the job to its end."""
        return self.end(self.start(*args, **options))

    def wait_for(self, what: Callable[[], Any], process: subprocess.Popen[bytes], every: float = 0.05) -> Any:
        """Wait until something is true of a running job, looking `every` so many seconds, and return it.

        Raises:
            EndedError: the job ended before.
            AssertionError: it takes too long.
        """
        deadline = time.monotonic() + self.patience
        while not (found := what()):
            if process.poll() is not None:
                raise EndedError(self.log)
            assert time.monotonic() < deadline, self.log
            time.sleep(every)
        return found

    def sealed(self) -> list[int]:
        """Return the steps of complete checkpoints, newest first."""
        seals = self.output.glob("checkpoint-*/stoker-checkpoint.json")
        return sorted((int(seal.parent.name.removeprefix("checkpoint-")) for seal in seals), reverse=True)

    def ranks(self) -> dict[int, int]:
        """Return the process ids of the ranks that are training, by rank."""
        found = {}
        for path in self.scratch.glob("stoker-*/ranks/[0-9]*.json"):
            try:
                status = json.loads(path.read_text())
            except OSError:
                continue
            if status["phase"] == "training":
                found[status["rank"]] = status["pid"]
        return found

    def runners(self) -> dict[int, int]:
        """Return the process id of each node's `stoker run`: of a node's processes the one that was given no orders."""
        return {
            int(environ["PET_NODE_RANK"]): pid
            for pid, environ in processes_of(self.folder).items()
            if "PET_NODE_RANK" in environ and "STOKER_PLAN" not in environ
        }

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of each step that the run has logged, checked against their schema."""
        lines = [json.loads(line) for line in (self.output / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            check(line, "metrics-v1")
        return lines

    def manifest(self) -> dict[str, Any]:
        """Return the output manifest."""
        manifest: dict[str, Any] = json.loads((self.output / "stoker.json").read_text())
        check(manifest, "manifest-v1")
        return manifest


def processes_of(folder: Path) -> dict[int, dict[str, str]]:
    """Return the environment of every process whose temporary folder or workspace lies in `folder`, by process id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            entries = path.read_text(errors="replace").split("\0")
        except OSError:
            continue
        environ = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        if any(environ.get(name, "").startswith(str(folder)) for name in ("TMPDIR", "STOKER_WORKSPACE")):
            found[int(path.parent.name)] = environ
    return found


def leftovers(folder: Path) -> list[str]:
    """Return the command lines of processes that a job left behind; those that are just ending get a moment."""
    deadline = time.monotonic() + 60
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    found = []
    for pid in left:
        with suppress(OSError):  # it has ended just now
            found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
    return found
