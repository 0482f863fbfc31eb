"""A sampler with real vLLM as `stoker sampler` starts it, for the run in a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import stoker

ROOT = Path(__file__).parents[3]
SOURCE = str(Path(stoker.__file__).parents[1])
# As in the runtimes for CPUs, but with one thread.
VLLM = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}


@contextmanager
def sampler(folder: Path, port: int, watcher: int, *flags: str) -> Iterator[None]:
    """Have a sampler of the run in a folder.

    Args:
        folder: the workspace; gets the sampler's log.
        port: where vLLM answers.
        watcher: where its watcher does.
        flags: more of vLLM's.
    """
    made = subprocess.run([ROOT / "images/vllm/venv"], check=True, stdout=subprocess.PIPE, text=True)
    command = [sys.executable, "-m", "stoker", "sampler", "--output", str(folder / f"config-{port}")]
    own = ["--vllm", f"{made.stdout.strip()}/bin/vllm", "--port", str(port), "--watch-port", str(watcher)]
    told = {
        "PYTHONPATH": SOURCE, "HOME": str(folder), "STOKER_WORKSPACE": str(folder),
        "STOKER_JOB_ID": "job", "STOKER_RESTART_ATTEMPT": "0",
    }  # fmt: skip
    with (folder / f"sampler-{port}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *own, "--", "--enforce-eager", "--max-num-seqs=16", *flags],
            env={**os.environ, **VLLM, **told}, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(120)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
