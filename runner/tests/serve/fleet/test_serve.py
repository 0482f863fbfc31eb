"""`stoker fleet` as a process: what it refuses, that it answers, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from runner.tests.serve.fleet.members import Members, wait_for

import stoker
from stoker.cluster.processes import free_ports
from stoker.commands.main import main

PLACES = ("--ready", "127.0.0.1:9", "--known", "127.0.0.1:9")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--ready", "replicas", "--known", "replicas:1"), 64, "--ready 'replicas' is not an address: write HOST:PORT"),
        (("--ready", "replicas:1", "--known", ":1"), 64, "--known ':1' is not an address"),
        (PLACES[:2], 64, "missing option '--known'"),
        ((*PLACES, "--timeout", "0"), 64, "'--timeout'"),
        ((*PLACES, "--host", "203.0.113.1"), 78, "give a --host of this machine and a free --port"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, words: tuple[str, ...], code: int, says: str) -> None:
    found = CliRunner().invoke(main, ["fleet", "--folder", str(tmp_path / ".fleet"), *words])
    assert (found.exit_code, says in found.output) == (code, True), found.output


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    found = CliRunner().invoke(main, ["fleet", "--folder", str(tmp_path), *PLACES])
    assert found.exit_code == 78
    assert "cannot be read" in found.output


@contextmanager
def process_of(members: Members, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run the command for the fleet's first replica; yields the process, once it answers, and its address."""
    (port,), one = free_ports(1), members.all[0]
    command = [
        *(sys.executable, "-m", "stoker", "fleet", "--folder", str(members.log.folder), "--port", str(port)),
        *("--ready", one.name, "--known", one.name, "--interval", "0.2"),
    ]
    source = str(Path(stoker.__file__).parents[1])
    with log.open("wb") as stream:
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": source}, stdout=stream, stderr=stream)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/fleet", timeout=5) as answer:
                    assert json.load(answer)["replicas"][one.name]["ready"]
                break
            except OSError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield process, f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def called(address: str, path: str, body: object) -> str:
    """Return the answer to a POST that is answered with 200."""
    request = urllib.request.Request(f"http://{address}{path}", json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert answer.status == 200
        return str(answer.read(), "utf-8")


def listens(address: str) -> bool:
    """Return whether a connection is accepted there."""
    host, _, port = address.partition(":")
    with socket.socket() as found:
        return found.connect_ex((host, int(port))) == 0


def test_it_answers_until_it_is_told_to_stop(members: Members, tmp_path: Path) -> None:
    (one,) = members.start(1)
    with process_of(members, tmp_path / "log") as (process, address):
        assert json.loads(called(address, "/pause", {})) == {"status": "paused"}
        assert one.vllm.paused
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0


def test_a_call_under_way_is_answered_and_kept_before_it_ends(members: Members, tmp_path: Path) -> None:
    (one,) = members.start(1)
    order = {"lora_name": "a", "lora_path": members.adapter("a")}
    with process_of(members, tmp_path / "log") as (process, address), ThreadPoolExecutor(1) as threads:
        before = one.vllm.counted["/v1/models"]
        one.vllm.gate_models.clear()  # the replica cannot see whether it has the adapter
        answer = threads.submit(called, address, "/v1/load_lora_adapter", order)
        wait_for(lambda: one.vllm.counted["/v1/models"] > before)
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: not listens(address))
        one.vllm.gate_models.set()
        assert answer.result(120) == "Success: LoRA adapter 'a' added successfully."
        assert process.wait(120) == 0
    newest, _ = members.log.newest()
    assert (newest.kept, dict(newest.adapters)) == (True, {"a": order["lora_path"]})
