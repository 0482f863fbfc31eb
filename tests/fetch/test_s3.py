"""Buckets of a real S3 server."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fetch.conftest import Initializer
from fetch.s3 import ACCESS_KEY, SECRET_KEY, put

SECRET = {"ACCESS_KEY_ID": ACCESS_KEY, "SECRET_ACCESS_KEY": SECRET_KEY}
# The larger one is put in several parts, so its ETag is no checksum.
WEIGHTS = {"model-00001.safetensors": os.urandom(20 * 2**20), "model-00002.safetensors": os.urandom(64 * 2**20)}
MODEL = {"config.json": b"{}", "tokenizer/chat_template.jinja": b"{{ messages }}", **WEIGHTS}
Make = Callable[..., Initializer]


@pytest.fixture(scope="module")
def bucket(clients: Path, store: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A bucket with a model below `models/tiny`, and something beside it."""
    files = {f"models/tiny/{name}": data for name, data in MODEL.items()} | {"models/tiny-2/other": b"x"}
    put(clients, store, "shelf", files, tmp_path_factory.mktemp("put"))
    return "shelf"


def test_a_prefix_becomes_the_model_and_is_fetched_once(store: str, bucket: str, initializer: Make) -> None:
    container = initializer(ENDPOINT=store, REGION="us-east-1", **SECRET)
    code, output = container.run("model", f"s3://{bucket}/models/tiny")
    assert code == 0, output
    assert container.files("model") == MODEL
    code, output = container.run("model", f"s3://{bucket}/models/tiny")
    assert (code, "nothing to fetch" in output) == (0, True)


def test_a_killed_download_goes_on_where_it_stopped(store: str, bucket: str, initializer: Make) -> None:
    container = initializer(ENDPOINT=store, **SECRET)
    killed = container.start("model", f"s3://{bucket}/models/tiny")
    container.wait_for_bytes(30 * 2**20)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    if (container.workspace / "model").exists():
        pytest.skip("this machine was too fast to be killed halfway")
    there = sum(p.stat().st_size for p in container.workspace.rglob("*.safetensors"))
    begun = {p: p.stat().st_ino for p in container.workspace.rglob("*.safetensors")}
    assert there >= 30 * 2**20
    assert container.run("model", f"s3://{bucket}/models/tiny")[0] == 0
    assert container.files("model") == MODEL
    assert set(begun.values()) <= {p.stat().st_ino for p in (container.workspace / "model").rglob("*")}


def test_a_broken_part_of_an_earlier_try_is_noticed(store: str, bucket: str, initializer: Make) -> None:
    container = initializer(ENDPOINT=store, **SECRET)
    uri = f"s3://{bucket}/models/tiny/model-00001.safetensors"
    killed = container.start("model", uri)
    container.wait_for_bytes(16 * 2**20)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    partial = next(iter(container.workspace.rglob("*.safetensors")))
    data = bytearray(partial.read_bytes())
    data[0] ^= 1
    if (container.workspace / "model").exists():
        pytest.skip("this machine was too fast to be killed halfway")
    partial.write_bytes(data)
    code, output = container.run("model", uri)
    assert (code, "md5 checksum is not" in output) == (0, True), output
    assert container.files("model") == {"model-00001.safetensors": WEIGHTS["model-00001.safetensors"]}


@pytest.mark.parametrize(
    ("uri", "env", "message"),
    [
        ("s3://shelf/missing", {}, "was not found: correct the bucket or the path"),
        ("s3://no-such-bucket/x", {}, "was not found: correct the bucket or the path"),
        ("s3://shelf/models/tiny", {"SECRET_ACCESS_KEY": "wrong"}, "access refused (SignatureDoesNotMatch)"),
        ("s3://shelf/models/tiny", {"ACCESS_KEY_ID": "nobody"}, "access refused (XAdminUserNotFound)"),
    ],
)
@pytest.mark.usefixtures("bucket")
def test_what_is_not_there_or_not_allowed_is_named(
    store: str, initializer: Make, uri: str, env: Mapping[str, str], message: str
) -> None:
    container = initializer(**{"ENDPOINT": store, **SECRET, **env})
    code, output = container.run("dataset", uri)
    assert (code, message in output) == (66, True), output
    assert SECRET_KEY not in output


def test_changed_data_is_not_taken_under_checkpoints(
    store: str, clients: Path, initializer: Make, tmp_path: Path
) -> None:
    put(clients, store, "data", {"train.jsonl": b"{}\n"}, tmp_path)
    container = initializer(ENDPOINT=store, **SECRET)
    assert container.run("dataset", "s3://data")[0] == 0
    put(clients, store, "data", {"train.jsonl": b"[]\n"}, tmp_path)
    code, output = container.run("dataset", "s3://data")
    assert (code, "the source or IGNORE_PATTERNS has changed" in output) == (78, True), output
    assert container.run("dataset", "s3://data", STOKER_FETCH_REPLACE="true")[0] == 0
    assert container.files("dataset") == {"train.jsonl": b"[]\n"}
