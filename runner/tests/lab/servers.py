"""vLLM in a process of its own, for tests of the lab."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.tests.lab.scripts import SERVING

from stoker.cluster.processes import free_ports

VLLM = {**SERVING, "VLLM_CPU_KVCACHE_SPACE": "1"}


@contextmanager
def server(python: Path, model: Path, folder: Path, *flags: str) -> Iterator[str]:
    """Serve a model with vLLM, and yield the address when it answers.

    Args:
        python: of an environment with vLLM.
        model: the model's folder.
        folder: gets the log.
        flags: further words of `vllm serve`.
    """
    (port,) = free_ports(1)
    program: list[str | Path] = [python, "-m", "vllm.entrypoints.cli.main"]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            # Some virtual machines name AMX and cannot run it, which vLLM's attention uses in bfloat16.
            [*program, "serve", model, "--served-model-name=tiny", f"--port={port}", "--enforce-eager",
             "--dtype=float32", *flags],
            stdout=log, stderr=log, env={**os.environ, **VLLM, "HOME": str(folder)},
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 600
        while True:
            assert process.poll() is None, (folder / "server.log").read_text()[-3000:]
            assert time.monotonic() < deadline, (folder / "server.log").read_text()[-3000:]
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(120)
