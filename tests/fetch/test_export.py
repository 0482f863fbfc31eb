"""`stoker export` sends results to a real S3 server and registry, and to a stand-in for the Hub, as the image does."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fetch import registry
from fetch.s3 import ACCESS_KEY, SECRET_KEY
from stoker.contract.manifest import write_manifest

ROOT = Path(__file__).parents[2]
TOKEN = "hf_" + 20 * "a"
LIST = "import sys, s3fs; print(*s3fs.S3FileSystem(endpoint_url=sys.argv[1]).ls(sys.argv[2]), sep='\\n')"
MAKE = "import sys, s3fs; s3fs.S3FileSystem(endpoint_url=sys.argv[1]).makedirs(sys.argv[2], exist_ok=True)"


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """A run's result, with a checkpoint that is not to be sent."""
    output = tmp_path / "output"
    (output / "checkpoint-1").mkdir(parents=True)
    (output / "checkpoint-1" / "optimizer.pt").write_bytes(b"x")
    (output / "config.json").write_text("{}")
    write_manifest(output, {"method": "sft", "base_model": {"name_or_path": "org/base", "revision": None}})
    return output


def export(python: Path, output: Path, uri: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Send a result."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "HF_", "STOKER_"))}
    told = {**plain, "PYTHONPATH": str(ROOT / "runner" / "src"), "HF_HOME": str(output.parent / "hf"), **env}
    words = [str(python), "-m", "stoker", "export", str(output), "--push", uri]
    return subprocess.run(words, check=False, capture_output=True, text=True, env=told)


def test_a_bucket_gets_the_files_and_the_manifest(clients: Path, store: str, result: Path) -> None:
    env = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_ENDPOINT_URL": store}
    subprocess.run([clients, "-c", MAKE, store, "exports"], check=True, env={**os.environ, **env})
    done = export(clients, result, "s3://exports/a/model", **env)
    assert done.returncode == 0, done.stderr
    listed = subprocess.run(
        [clients, "-c", LIST, store, "exports/a/model"], check=True, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **env},
    ).stdout.split()  # fmt: skip
    assert [name.rpartition("/")[2] for name in listed] == ["config.json", "stoker.json"]
    wrong = export(clients, result, "s3://exports/a", **{**env, "AWS_SECRET_ACCESS_KEY": "not-the-secret"})
    assert (wrong.returncode, "the right to write there" in wrong.stderr) == (78, True), wrong.stderr
    nobody = export(clients, result, "s3://exports/a", AWS_ENDPOINT_URL=store, AWS_EC2_METADATA_DISABLED="true")
    assert (nobody.returncode, "AWS_ACCESS_KEY_ID" in nobody.stderr) == (78, True), nobody.stderr
    missing = export(clients, result, "s3://no-such-bucket/a", **env)
    assert (missing.returncode, "there is no such bucket" in missing.stderr) == (78, True), missing.stderr


PULL = """
import sys, oras.client
client = oras.client.OrasClient(insecure=True, auth_backend="basic")
client.auth.set_basic_auth(*sys.argv[3:])
client.pull(sys.argv[1], outdir=sys.argv[2])
"""


@pytest.mark.full
def test_a_registry_gets_the_files_and_the_manifest(clients: Path, result: Path, tmp_path: Path) -> None:
    """Full, because the registry is the cluster's, which a cold cache builds for minutes."""
    account = {"ORAS_USER": registry.USER, "ORAS_PASS": registry.PASSWORD}
    (tmp_path / "served").mkdir()
    with registry.serving(tmp_path / "served") as host:
        uri = f"oci://{host}/models/tiny:1"
        for _ in range(2):  # what is there already is no failure
            done = export(clients, result, uri, HOME=str(tmp_path), **account)
            assert done.returncode == 0, done.stderr
        pulled = [str(clients), "-c", PULL, f"{host}/models/tiny:1", str(tmp_path / "pulled"), *account.values()]
        subprocess.run(pulled, check=True, env={**os.environ, "HOME": str(tmp_path)})
        for name in ("config.json", "stoker.json"):
            assert (tmp_path / "pulled" / name).read_bytes() == (result / name).read_bytes()
        assert len(list((tmp_path / "pulled").iterdir())) == 2
        for wrong in ({**account, "ORAS_PASS": "other"}, {}):
            refused = export(clients, result, uri, HOME=str(tmp_path), **wrong)
            assert (refused.returncode, "give ORAS_USER and ORAS_PASS" in refused.stderr) == (78, True), refused.stderr
            assert "Traceback" not in refused.stderr
    gone = export(clients, result, uri, HOME=str(tmp_path), **account)
    assert (gone.returncode, "try again" in gone.stderr) == (69, True), gone.stderr


class Hub(ThreadingHTTPServer):
    """As much of the Hub as an upload of small files uses (huggingface_hub 2.4)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.made: list[dict[str, object]] = []
        self.committed: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer(401, {"error": "Invalid username or password."})
        elif self.path == "/api/repos/create":
            self.server.made.append(json.loads(body))
            self._answer(200, {"url": "http://127.0.0.1/me/mine", "id": "me/mine"})
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            told = [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in files]
            self._answer(200, {"files": told})
        elif "/commit/" in self.path:
            lines = [json.loads(line) for line in body.splitlines()]
            self.server.committed += [line["value"]["path"] for line in lines if line["key"] == "file"]
            oid = "c0ffee00" * 5
            self._answer(200, {"commitUrl": f"http://127.0.0.1/me/mine/commit/{oid}", "commitOid": oid})
        else:
            self._answer(200, {})

    def do_GET(self) -> None:
        self._answer(200, {"id": "me/mine", "sha": "c0ffee00" * 5, "siblings": [], "tags": []})

    def _answer(self, status: int, told: object) -> None:
        data = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub."""
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_hub_gets_one_private_commit(clients: Path, hub: Hub, result: Path) -> None:
    address = f"http://127.0.0.1:{hub.server_port}"
    done = export(clients, result, "hf://me/mine", HF_ENDPOINT=address, HF_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    assert sorted(hub.committed) == ["config.json", "stoker.json"]
    assert hub.made[0]["visibility"] == "private"
    for env in ({"HF_TOKEN": "hf_" + 20 * "b"}, {}):
        refused = export(clients, result, "hf://me/mine", HF_ENDPOINT=address, **env)
        assert (refused.returncode, "HF_TOKEN" in refused.stderr) == (78, True), refused.stderr
        assert "bbbb" not in refused.stderr
