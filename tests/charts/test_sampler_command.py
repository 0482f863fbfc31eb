"""A sampler that ends, for whatever reason, is never done: its Job must put another one in its place."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from builders import pod_of, replicated_jobs

RUNTIME = Path(__file__).resolve().parents[2] / "examples/runtimes/trl-grpo-async-cpu.yaml"
# Ends with 0 when it is told to stop, as vLLM does.
SERVER = """#!/bin/sh
trap 'kill $!; exit 0' TERM
sleep 600 &
echo "$@" > "$NOTED"
case "$4" in
  --ends=*) kill $!; exit "${4#--ends=}" ;;
esac
wait $!
"""


@pytest.fixture
def noted(tmp_path: Path) -> Path:
    """The file in which a stand-in for vLLM, in the same folder, writes down its arguments."""
    program = tmp_path / "vllm"
    program.write_text(SERVER)
    program.chmod(0o755)
    return tmp_path / "noted"


def started(noted: Path, *args: str) -> subprocess.Popen[bytes]:
    """Start the command of the sampler's container with these arguments."""
    (sampler,) = (job for job in replicated_jobs(yaml.safe_load(RUNTIME.read_text())) if job["name"] == "sampler")
    (server,) = pod_of(sampler)["containers"]
    environ = {"PATH": f"{noted.parent}:{os.environ['PATH']}", "NOTED": str(noted)}
    return subprocess.Popen([*server["command"], *args], env=environ)


@pytest.mark.parametrize(("ends", "code"), [(0, 75), (1, 1), (137, 137)])
def test_a_server_that_ends_by_itself_has_failed(noted: Path, ends: int, code: int) -> None:
    assert started(noted, f"--ends={ends}", "--port=8000").wait(120) == code
    assert noted.read_text() == f"serve --config /config/vllm.yaml --ends={ends} --port=8000\n"


def test_a_server_that_is_told_to_stop_ends_at_once_and_has_failed(noted: Path) -> None:
    process = started(noted)
    while not (noted.exists() and noted.read_text()):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 75
