"""A sampler as processes of this machine: what they leave in the temporary folder goes with them."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

import pytest

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
            deadline = time.monotonic() + 60
            while not (seen.exists() and seen.read_text()):
                assert time.monotonic() < deadline, "the server could not make its socket"
                time.sleep(0.05)
        finally:
            stop.set()
            thread.join(60)
        assert not Path(seen.read_text()).parent.exists()
        assert [*folder.iterdir()] == []
