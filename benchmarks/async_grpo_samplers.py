"""Samplers for benchmarks: vLLM with its watcher, as processes that serve one run after another."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.jobs import JobFailed, end_process
from benchmarks.paired import say

from stoker.cluster.processes import free_ports
from stoker.contract.samplers import SamplerRequest, request_path

_JOB = "benchmark"
# The trainer and the other samplers want the processors too: as in the runtimes, no process spins. The development mode
# is what TRL's trainer asks for.
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    # On a GPU its own sampler would be compiled with nvcc.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "HF_HUB_OFFLINE": "1",
}
_FLAGS = ("--enforce-eager", "--max-num-seqs=64")
_LOOK_SECONDS = 1.0
_END_SECONDS = 20.0
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


@dataclass(slots=True)
class _Sampler:
    process: subprocess.Popen[bytes]
    port: int
    watch_port: int
    log: Path


@dataclass(slots=True)
class Idle:
    """When samplers had nothing to do, and what they did.

    Attributes:
        looks: time of each look, and whether any sampler had a request then.
        answers: that samplers wrote to their end, as they count them themselves.
    """

    looks: list[tuple[float, bool]] = field(default_factory=list)
    answers: int = 0

    def share(self, begin: float, end: float) -> float | None:
        """Return the share of looks between two times at which no sampler had a request; None without a look."""
        found = [busy for when, busy in self.looks if begin <= when <= end]
        return found.count(False) / len(found) if found else None


class Samplers:
    """As many samplers as a row needs.

    Args:
        folder: a workspace of their own.
        model: the base model's folder.
        runner: the Python that has the runner.
        vllm: the folder of vLLM's environment.
        versions: how many versions requests may name.
        patience: seconds that one may take to start.
        flags: more flags of vLLM.
        rank: of the adapters that they take; None: they take whole weights.
    """

    def __init__(
        self,
        folder: Path,
        model: Path,
        runner: Path,
        vllm: Path,
        versions: int,
        patience: float,
        flags: Sequence[str] = (),
        rank: int | None = 16,
    ) -> None:
        self.folder, self.adapters, self.model, self.vllm = folder, folder / "adapters", model, vllm
        self._runner, self._patience, self._flags = runner, patience, (*_FLAGS, *flags)
        self._running: list[_Sampler] = []
        self._started = 0
        request = SamplerRequest(str(model), "base", str(self.adapters), None, rank, versions=versions, dtype="float32")
        request.write(request_path(folder, _JOB, 0))

    @property
    def addresses(self) -> str:
        """The samplers, as `--samplers` takes them."""
        return ",".join(
            f"http://127.0.0.1:{one.port};watcher=http://127.0.0.1:{one.watch_port}" for one in self._running
        )

    def have(self, count: int) -> None:
        """Have that many samplers ready, no more and no less.

        Raises:
            JobFailed: one does not start.
        """
        while len(self._running) > count:
            end_process(self._running.pop().process, _END_SECONDS)
        fresh = [self._start() for _ in range(count - len(self._running))]
        self._running += fresh
        if fresh:
            say(f"starts {len(fresh)} sampler(s)")
        try:
            for one in self._running:
                _until_ready(one, self._patience)
        except JobFailed:
            self.have(0)  # the next row starts its own
            raise

    def _start(self) -> _Sampler:
        self._started += 1
        config = self.folder / f"sampler-{self._started}"
        port, watch_port = free_ports(2)
        command = [str(self._runner), "-m", "stoker", "sampler", "--output", str(config), "--port", str(port)]
        own = ["--watch-port", str(watch_port), "--vllm", str(self.vllm / "bin" / "vllm"), "--", *self._flags]
        told = {"STOKER_WORKSPACE": str(self.folder), "STOKER_JOB_ID": _JOB, "STOKER_RESTART_ATTEMPT": "0"}
        return _Sampler(_spawn([*command, *own], told, config.with_suffix(".log")), port, watch_port, config)

    @contextmanager
    def plain(self) -> Iterator[str]:
        """Have one more vLLM with the same flags and no watcher, and give its address."""
        self.have(max(1, len(self._running)))
        (port,) = free_ports(1)
        command = [str(self.vllm / "bin" / "vllm"), "serve", "--config", str(self._running[0].log / "vllm.yaml")]
        own = ["--host=127.0.0.1", f"--port={port}", "--disable-uvicorn-access-log", *self._flags]
        say("starts a vLLM without a watcher")
        log = self.folder / "plain"
        one = _Sampler(_spawn([*command, *own], {}, log.with_suffix(".log")), port, 0, log)
        try:
            _until_ready(one, self._patience)
            yield f"http://127.0.0.1:{port}"
        finally:
            end_process(one.process, _END_SECONDS)

    @contextmanager
    def watched(self) -> Iterator[Idle]:
        """Look at the samplers once a second, for whether they have something to do."""
        found, over = Idle(), threading.Event()
        ports = [one.port for one in self._running]

        def look() -> None:
            while not over.wait(_LOOK_SECONDS):
                with suppress(OSError):
                    found.looks.append((time.monotonic(), any(_requests_at(port) for port in ports)))

        thread = threading.Thread(target=look, daemon=True)
        before = sum(map(_answers_of, ports))
        thread.start()
        try:
            yield found
        finally:
            over.set()
            thread.join()
            with suppress(OSError):
                found.answers = sum(map(_answers_of, ports)) - before


def _spawn(command: Sequence[str], told: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        return subprocess.Popen(command, env={**os.environ, **_ENVIRONMENT, **told}, stdout=stream, stderr=stream)


def _until_ready(one: _Sampler, patience: float) -> None:
    end = time.monotonic() + patience
    while True:
        with suppress(OSError):
            _ask(f"http://127.0.0.1:{one.port}/v1/models")
            return
        if one.process.poll() is not None or time.monotonic() > end:
            printed = one.log.with_suffix(".log").read_text(errors="replace")[-3000:]
            raise JobFailed(f"{printed}\na sampler did not start in {patience:.0f} s; the end of its log is above")
        time.sleep(0.5)


def _requests_at(port: int) -> float:
    """Return how many requests a vLLM works at."""
    text = _ask(f"http://127.0.0.1:{port}/metrics")
    return sum(float(value) for value in re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", text, re.M))


def _answers_of(port: int) -> int:
    """Return how many answers a vLLM has written to their end since it started."""
    counters = r'^vllm:request_success_total\{.*finished_reason="(?:stop|length)".*\} (\S+)$'
    return int(sum(map(float, re.findall(counters, _ask(f"http://127.0.0.1:{port}/metrics"), re.M))))


def _ask(url: str) -> str:
    with _open(url, timeout=10) as answer:
        text: str = answer.read().decode()
        return text
