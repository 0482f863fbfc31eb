"""Replicas of a fleet without Kubernetes: real vLLM, prepared and watched as the chart has it, on ports of loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import yaml

import stoker
from stoker.cluster.processes import free_ports

SOURCE = str(Path(stoker.__file__).parents[1])
VLLM = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip


def ask(port: int, path: str, body: Any = None) -> tuple[int, Any]:
    """Return the status and the answer of a request; 0 if nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            status, text = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    except OSError:
        return 0, None
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text.decode()


class Programs:
    """Programs that run beside a test.

    Args:
        folder: gets their logs.
        stack: ends them.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack

    def start(
        self, name: str, command: Sequence[str | Path], environ: Mapping[str, str] = {}
    ) -> subprocess.Popen[bytes]:
        """Start one."""
        log = self._stack.enter_context((self._folder / f"{name}.log").open("ab"))
        environ = {**os.environ, **environ}
        process = subprocess.Popen([*command], env=environ, stdout=log, stderr=log, start_new_session=True)
        self._stack.callback(_end, process)
        return process

    def stoker(self, name: str, *words: str | Path) -> subprocess.Popen[bytes]:
        """Start a command of ours."""
        return self.start(name, [sys.executable, "-m", "stoker", *words], {"PYTHONPATH": SOURCE})

    def logs(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self._folder.glob("*.log")))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program with all that it started."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(120)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Replica:
    """vLLM and its watcher.

    Args:
        python: of an environment with vLLM.
        folder: of its configuration and logs.
        model: what it serves as `base`.
        state: folder of the fleet's state.
        stack: ends it.
        lora: the settings of adapters; without them it takes whole weights.

    Attributes:
        vllm: vLLM's port.
        watch: the watcher's port.
        programs: what runs.
    """

    def __init__(
        self, python: Path, folder: Path, model: Path, state: Path, stack: ExitStack, lora: Mapping[str, Any] = {}
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.vllm, self.watch = free_ports(2)
        self.programs = Programs(folder, stack)
        settings = folder / "adapters.yaml"
        own = {"model": {"path": str(model), "name": "base"}, "lora": {**lora}, "fleet": {"folder": str(state)}}
        settings.write_text(yaml.safe_dump(own))
        prepare = self.programs.stoker(
            "prepare", "adapters", "prepare", "--settings", settings, "--output", folder / "config"
        )
        assert prepare.wait() == 0, self.programs.logs()
        self.programs.start(
            "vllm",
            [
                python.with_name("vllm"), "serve", model, "--config", folder / "config/vllm.yaml", "--host=127.0.0.1",
                "--served-model-name=base", f"--port={self.vllm}", "--dtype=float32", "--enforce-eager",
                "--max-model-len=128", "--max-num-seqs=16", "--logprobs-mode=processed_logprobs", "--max-logprobs=-1",
                "--generation-config=vllm",
            ],
            {**VLLM, "PYTHONPATH": str(folder / "config/python"), "HOME": str(folder)},
        )  # fmt: skip
        at = ("--server", f"http://127.0.0.1:{self.vllm}", "--host", "127.0.0.1", "--port", str(self.watch))
        self.programs.stoker("watch", "adapters", "watch", "--settings", settings, *at)

    def await_ready(self, seconds: float = 900) -> None:
        """Wait until it serves, with all that its fleet wants."""
        deadline = time.monotonic() + seconds
        while not ((found := ask(self.watch, "/adapters")[1]) and found["ready"]):
            assert time.monotonic() < deadline, self.programs.logs()
            time.sleep(0.5)

    def requests(self) -> float:
        """Return how many requests vLLM has answered."""
        _, text = ask(self.vllm, "/metrics")
        lines = [line for line in text.splitlines() if line.startswith("vllm:request_success_total{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)
