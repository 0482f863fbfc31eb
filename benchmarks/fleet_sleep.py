"""What vLLM frees of a GPU while it sleeps, and how long that takes, by the calls of `stoker slice run`."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.jobs import JobFailed, end_process

from stoker.cluster.processes import free_ports
from stoker.serve.slices.hooks import HookError, VllmHooks
from stoker.serve.vllm import Server

LEVELS = (1, 2)
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    # Its own sampler would be compiled with nvcc.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
_FLAGS = ("--enable-sleep-mode", "--enforce-eager", "--max-model-len=2048", "--gpu-memory-utilization=0.3")
_QUESTION = {"model": "base", "prompt": [65, 66, 67, 68], "max_tokens": 16, "temperature": 0, "return_token_ids": True}
_END_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Slept:
    """One sleep.

    Attributes:
        level: of vLLM.
        asleep: seconds until it slept.
        awake: seconds until it went on.
        used: MiB of the GPU that were in use before.
        left: MiB that were in use while it slept.
    """

    level: int
    asleep: float
    awake: float
    used: int
    left: int


@contextmanager
def sleeping_engine(python: Path, model: Path, folder: Path) -> Iterator[str]:
    """Start a vLLM that can sleep, give its address, and end it.

    Args:
        python: of vLLM's environment.
        model: the folder of the model.
        folder: for its log.
    """
    (port,) = free_ports(1)
    command: list[str | Path] = [python.with_name("vllm"), "serve", model, "--served-model-name=base"]
    with (folder / "vllm.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--host=127.0.0.1", f"--port={port}", *_FLAGS],
            env={**os.environ, **_ENVIRONMENT},
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        end_process(process, _END_SECONDS)


def sleeps(address: str, times: int, patience: float, memory: Callable[[], int]) -> Iterator[Slept]:
    """Put an engine to sleep at each level in turn, wake it up, and ask it the same question each time.

    Args:
        address: of the engine, which may still start.
        times: how often, for each level.
        patience: seconds that it may take to start or to do what it is told.
        memory: returns the MiB of the GPU that are in use.

    Raises:
        JobFailed: it did not do as it was told, or answered otherwise after a sleep.
    """
    server = Server(address, patience)
    try:
        VllmHooks(address, 0, patience, patience, None).use(_always)
        first = _answer(server)
        for _ in range(times):
            for level in LEVELS:
                hooks = VllmHooks(address, level, patience, patience, None)
                used = memory()
                asleep = _seconds(hooks.park)
                left = memory()
                awake = _seconds(partial(hooks.use, _always))
                if (answer := _answer(server)) != first:
                    raise JobFailed(f"after a sleep of level {level} the engine answered {answer} instead of {first}")
                yield Slept(level, asleep, awake, used, left)
    except HookError as error:
        raise JobFailed(f"the engine did not sleep or go on: {error}") from error


def memory_in_use() -> int:
    """Return the MiB of the first GPU that are in use, by all processes."""
    command = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def of_sleeps(found: Sequence[Slept]) -> Iterator[str]:
    """Yield what sleeps say, by their level."""
    if not found:
        yield "sleep                    not measured: the engine never slept"
    for level in sorted({one.level for one in found}):
        these = [one for one in found if one.level == level]

        def middle(name: str, these: Sequence[Slept] = these) -> float:
            return float(statistics.median(getattr(one, name) for one in these))

        yield (
            f"{f'sleep, level {level}':<24} {middle('asleep'):.2f} s to sleep, {middle('awake'):.2f} s to go on; "
            f"{middle('left'):.0f} of {middle('used'):.0f} MiB of the GPU stay in use; {len(these)} times"
        )


def _always() -> bool:
    return True


def _answer(server: Server) -> Any:
    return server.complete(_QUESTION)["choices"][0]["token_ids"]


def _seconds(act: Callable[[], None]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began
