"""A real OCI registry, the one that the tests' cluster runs, which asks for a name and a password."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import artifacts

USER, PASSWORD = "stoker", "stoker-secret"
# Of the password, by bcrypt, which is all that the registry reads.
_HASHED = "$2b$04$AVptSFdhY1RW4PQ7dOpcseZEoui2Q94QiE.p16MmpHxZ9VdCFX9.2"
_CONFIG = """\
version: 0.1
log: {{level: warn, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: "{address}"}}
auth: {{htpasswd: {{realm: tests, path: {folder}/htpasswd}}}}
"""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder, and yield the registry's host and port."""
    program = artifacts.build([artifacts.REGISTRY])[artifacts.REGISTRY] / "registry"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    (folder / "htpasswd").write_text(f"{USER}:{_HASHED}\n")
    config = folder / "registry.yaml"
    config.write_text(_CONFIG.format(folder=folder, address=address))
    with (folder / "registry.log").open("wb") as log:
        # Traces would be sent to a collector that does not exist.
        server = subprocess.Popen(
            [program, "serve", config], env={**os.environ, "OTEL_TRACES_EXPORTER": "none"}, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 120
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) == 0:
                    break
            assert server.poll() is None, (folder / "registry.log").read_text()
            assert time.monotonic() < deadline, "the registry does not answer"
            time.sleep(0.05)
        yield address
    finally:
        server.terminate()
        server.wait(120)
