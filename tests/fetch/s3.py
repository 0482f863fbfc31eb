"""A real S3 server: Versity's gateway (Apache-2.0) over a folder, built from its Go module."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from images.builder import cache

from cluster import gobuild
from fetch.outside import Certificate

MODULE = Path(__file__).with_name("go")
PACKAGE = "github.com/versity/versitygw/cmd/versitygw"
ACCESS_KEY, SECRET_KEY = "stoker", "stoker-secret"
# A program for a Python with s3fs; its arguments: address, access key, secret key, bucket or prefix, folder.
PUT = """
import pathlib, sys, s3fs
address, key, secret, target, source = sys.argv[1:]
store = s3fs.S3FileSystem(key=key, secret=secret, endpoint_url=address)
store.makedirs(target.split("/")[0], exist_ok=True)
for path in pathlib.Path(source).rglob("*"):
    if path.is_file():
        store.put_file(str(path), f"{target}/{path.relative_to(source)}", chunksize=32 * 2**20)
"""


def program() -> Path:
    """Return the server's program, built on the first use (a minute on two cores, downloads included)."""
    key = cache.digest(files=[MODULE], relative_to=MODULE)

    def build(folder: Path) -> None:
        gobuild.make(folder, MODULE, "versitygw", PACKAGE, "-s -w", (), gobuild.Work())

    return cache.entry(cache.root() / "bin" / f"versitygw-{key}", "versitygw", build) / "versitygw"


def put(
    python: Path, address: str, target: str, files: Mapping[str, bytes], scratch: Path, env: Mapping[str, str] = {}
) -> None:
    """Put files into a bucket, or below a prefix of one.

    Args:
        python: an interpreter with s3fs.
        address: the server's.
        target: the bucket, or bucket and prefix.
        files: name → content.
        scratch: a folder for them.
        env: more variables for the client.
    """
    source = scratch / target
    for name, data in files.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    words: list[str | Path] = [python, "-c", PUT, address, ACCESS_KEY, SECRET_KEY, target, source]
    subprocess.run(words, check=True, env={**os.environ, **env})


@contextmanager
def serving(folder: Path, certificate: Certificate | None = None) -> Iterator[str]:
    """Serve a folder, whose subfolders are buckets, and yield the server's address.

    Args:
        folder: the folder.
        certificate: the server's, to speak TLS.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command: list[str | Path] = [
        program(),
        "--access",
        ACCESS_KEY,
        "--secret",
        SECRET_KEY,
        "--port",
        f"127.0.0.1:{port}",
        "--quiet",
    ]
    if certificate:
        command += ["--cert", certificate.chain, "--key", certificate.key]
    server = subprocess.Popen([*command, "posix", folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert server.poll() is None, "the S3 server ended"
                assert time.monotonic() < deadline, "the S3 server does not listen"
                time.sleep(0.05)
        yield f"http{'s' if certificate else ''}://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(120)
