"""A sampler as processes of this machine: what they leave in the temporary folder goes with them."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from pathlib import Path

import pytest

from stoker.contract.exits import ExitCode, RunError
from stoker.serve import sampler_process
from stoker.serve.sampler_process import SamplerProcess

# What vLLM calls its sockets.
SOCKET = "00d01f1a-4805-413f-9d6d-b6875b87d330"
SERVER = f"""#!/usr/bin/env python3
import pathlib, socket, os, time
path = os.path.join(os.environ["TMPDIR"], "{SOCKET}")
socket.socket(socket.AF_UNIX).bind(path)
pathlib.Path(os.environ["SEEN"]).write_text(path)
time.sleep(60)
"""


@pytest.mark.parametrize("deep", [False, True], ids=["a short folder", "one that is too long for a socket"])
def test_sockets_have_room_and_go_with_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deep: bool) -> None:
    server, seen = tmp_path / "vllm", tmp_path / "seen"
    server.write_text(SERVER)
    server.chmod(0o755)
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        folder = tmp_path / ("x" * 100) if deep else Path(short)
        folder.mkdir(exist_ok=True)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        stop = threading.Event()
        environ = {"PATH": os.environ["PATH"], "SEEN": str(seen)}
        sampler = SamplerProcess(str(server), tmp_path, 1, 2, (), environ)
        thread = threading.Thread(target=sampler.run, args=(stop,))
        thread.start()
        try:
            deadline = time.monotonic() + 120
            while not (seen.exists() and seen.read_text()):
                assert time.monotonic() < deadline, "the server could not make its socket"
                time.sleep(0.05)
        finally:
            stop.set()
            thread.join(120)
        assert not Path(seen.read_text()).parent.exists()
        assert [*folder.iterdir()] == []


HANGS = """#!/usr/bin/env python3
import http.server, os, pathlib, sys, time
class Once(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
port = next(int(word.partition("=")[2]) for word in sys.argv if word.startswith("--port="))
with http.server.HTTPServer(("127.0.0.1", port), Once) as server:
    with pathlib.Path(os.environ["SEEN"]).open("a") as seen:
        seen.write("started ")
    server.handle_request()
time.sleep(60)
"""


REFUSES = """#!/bin/sh
echo "usage: vllm serve" >&2
echo "vllm serve: error: unrecognized arguments: $*" >&2
exit 2
"""


def test_a_server_that_refuses_its_flags_is_not_started_again(tmp_path: Path) -> None:
    server = tmp_path / "vllm"
    server.write_text(REFUSES)
    server.chmod(0o755)
    sampler = SamplerProcess(str(server), tmp_path, 1, 2, ("--no-flag",), {"PATH": os.environ["PATH"]})
    stop = threading.Event()
    timer = threading.Timer(60, stop.set)  # else it tries for ever
    timer.daemon = True
    timer.start()
    with pytest.raises(RunError, match=r"\(vllm serve: error: unrecognized arguments: .*--no-flag\): correct") as ended:
        sampler.run(stop)
    assert ended.value.code is ExitCode.CONFIG


def test_a_server_that_no_longer_answers_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, seen = tmp_path / "vllm", tmp_path / "seen"
    server.write_text(HANGS)
    server.chmod(0o755)
    monkeypatch.setattr(sampler_process, "_SILENT_SECONDS", 0.5)
    monkeypatch.setattr(sampler_process, "_LOOK_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    stop = threading.Event()
    environ = {"PATH": os.environ["PATH"], "SEEN": str(seen)}
    sampler = SamplerProcess(str(server), tmp_path, port, 1, (), environ)
    thread = threading.Thread(target=sampler.run, args=(stop,))
    thread.start()
    try:
        deadline = time.monotonic() + 120
        while not (seen.exists() and seen.read_text().count("started") > 1):
            assert time.monotonic() < deadline, "the server was not started again"
            time.sleep(0.05)
    finally:
        stop.set()
        thread.join(120)
