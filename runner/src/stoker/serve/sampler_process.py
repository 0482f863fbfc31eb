"""A sampler without Kubernetes: vLLM and the watcher of its adapters as processes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import say
from stoker.serve.vllm import Server
from stoker.serve.weights.workers import PYTHON

# What the image of vLLM sets too: without a compiler torch must not compile, and nothing is sent home.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # Paths to pause and to call workers, for the watcher of whole weights.
    "VLLM_SERVER_DEV_MODE": "1",
}
_PAUSE_SECONDS = 1.0
_POLL_SECONDS = 0.2
_STOP_SECONDS = 10.0
# A server that hangs is as good as lost: vLLM may wait for its own tasks for ever once its engine has ended.
_SILENT_SECONDS, _LOOK_SECONDS, _ANSWER_SECONDS = 60.0, 5.0, 2.0
# A socket's path has at most 107 characters, and vLLM adds 37 to that of the temporary folder.
_LONGEST_FOLDER = 50
# With this vLLM ends for flags that its parser refuses; the same again would fail again.
_WRONG_FLAGS = 2
# Of the end of what vLLM says.
_KEPT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class SamplerProcess:
    """What a sampler is started with.

    Attributes:
        vllm: the program.
        config: folder with vllm.yaml and adapters.yaml.
        port: where vLLM answers, on loopback.
        watch_port: where the watcher answers, on loopback.
        args: more flags of vLLM.
        environ: the environment of both.
    """

    vllm: str
    config: Path
    port: int
    watch_port: int
    args: Sequence[str]
    environ: Mapping[str, str]

    def run(self, stop: threading.Event) -> None:
        """Serve until the stop; what ends by itself, and a vLLM that no longer answers, is started again.

        Raises:
            RunError: vLLM refuses its flags (78).
        """
        usual = tempfile.gettempdir()
        # vLLM leaves its sockets behind.
        with tempfile.TemporaryDirectory(
            prefix="stoker-vllm-", dir=usual if len(usual) <= _LONGEST_FOLDER else "/tmp"
        ) as scratch:
            self._serve(stop, {**self.environ, **_ENVIRONMENT, "TMPDIR": scratch})

    def _serve(self, stop: threading.Event, environ: Mapping[str, str]) -> None:
        commands = {"vLLM": self._vllm(), "the watcher": self._watcher()}
        paths = (str(self.config / PYTHON), self.environ.get("PYTHONPATH", ""))
        own = {"vLLM": {"PYTHONPATH": os.pathsep.join(filter(None, paths))}, "the watcher": dict[str, str]()}
        running: dict[str, subprocess.Popen[bytes]] = {}
        errors = _Errors()
        health = _Health(self.port)
        try:
            while not stop.is_set():
                if "vLLM" in running and health.is_lost():
                    say(f"vLLM has not answered for {_SILENT_SECONDS:.0f} s: ending it")
                    running["vLLM"].kill()
                for name, command in commands.items():
                    if name not in running:
                        told = subprocess.PIPE if name == "vLLM" else None
                        running[name] = subprocess.Popen(command, env={**environ, **own[name]}, stderr=told)
                        if name == "vLLM":
                            health, errors = _Health(self.port), _Errors(running[name].stderr)
                    elif (code := running[name].poll()) is not None:
                        if name == "vLLM" and code == _WRONG_FLAGS:
                            raise RunError(
                                ExitCode.CONFIG,
                                f"vLLM does not start with its flags ({errors.last_line()}): correct samplers.args of "
                                "the runtime, or what `stoker sampler` has after --",
                            )
                        say(f"{name} ended with {code}: starting it again")
                        del running[name]
                        stop.wait(_PAUSE_SECONDS)
                stop.wait(_POLL_SECONDS)
        finally:
            _end([*running.values()])

    def _vllm(self) -> list[str]:
        own = ["--host=127.0.0.1", f"--port={self.port}", "--disable-uvicorn-access-log"]
        return [self.vllm, "serve", "--config", str(self.config / "vllm.yaml"), *own, *self.args]

    def _watcher(self) -> list[str]:
        here = ["--server", f"http://127.0.0.1:{self.port}", "--host", "127.0.0.1", "--port", str(self.watch_port)]
        settings = ["--settings", str(self.config / "adapters.yaml")]
        return [sys.executable, "-m", "stoker", "adapters", "watch", *settings, *here]


class _Errors:
    """What a process writes to its standard error: passes it on, and keeps the end.

    Args:
        stream: the process's; None for a process that writes nothing.
    """

    def __init__(self, stream: IO[bytes] | None = None) -> None:
        self._kept = b""
        self._reader = threading.Thread(target=self._pass_on, args=(stream,), daemon=True)
        self._reader.start()

    def last_line(self) -> str:
        """Return the last line of a process that has ended."""
        self._reader.join(_STOP_SECONDS)
        lines = self._kept.decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it says nothing")

    def _pass_on(self, stream: IO[bytes] | None) -> None:
        while stream is not None and (said := os.read(stream.fileno(), _KEPT_BYTES)):
            with suppress(OSError):  # nobody reads ours any more: vLLM must not wait for that
                os.write(sys.stderr.fileno(), said)
            self._kept = (self._kept + said)[-_KEPT_BYTES:]


class _Health:
    """Whether a server that has answered still does; how long it takes to start does not matter."""

    def __init__(self, port: int) -> None:
        self._server = Server(f"http://127.0.0.1:{port}", timeout=_ANSWER_SECONDS)
        self._next = 0.0
        self._answered: float | None = None

    def is_lost(self) -> bool:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LOOK_SECONDS
            if self._server.healthy():
                self._answered = now
        return self._answered is not None and now - self._answered > _SILENT_SECONDS


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
