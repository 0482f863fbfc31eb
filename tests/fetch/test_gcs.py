"""Buckets of Google Cloud Storage over HTTP, by its own client."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from fetch import gcs
from fetch.conftest import Initializer

MODEL = {"config.json": b"{}", "tokenizer/chat_template.jinja": b"{{ x }}", "m.safetensors": os.urandom(40 * 2**20)}
Make = Callable[..., Initializer]


@pytest.fixture
def bucket() -> Iterator[gcs.Store]:
    """A store with a model below `models/tiny` of the bucket `shelf`, and something beside it."""
    with gcs.serving() as store:
        store.objects = {f"shelf/models/tiny/{name}": data for name, data in MODEL.items()}
        store.objects["shelf/models/tiny-2/other"] = b"x"
        yield store


def test_a_prefix_becomes_the_model_and_is_fetched_once(bucket: gcs.Store, initializer: Make) -> None:
    bucket.errors = 2
    container = initializer(STORAGE_EMULATOR_HOST=bucket.address)
    code, output = container.run("model", "gs://shelf/models/tiny")
    assert code == 0, output
    assert container.files("model") == MODEL
    sent = bucket.sent
    assert sent < 1.5 * sum(map(len, MODEL.values()))
    code, output = container.run("model", "gs://shelf/models/tiny")
    assert (code, "nothing to fetch" in output, bucket.sent) == (0, True, sent)


def test_a_proxy_of_the_environment_is_asked(bucket: gcs.Store, initializer: Make) -> None:
    """The store has no address here but the proxy's, which is the stand-in."""
    container = initializer(STORAGE_EMULATOR_HOST="http://storage.invalid", HTTP_PROXY=bucket.address)
    code, output = container.run("model", "gs://shelf/models/tiny")
    assert (code, container.files("model")) == (0, MODEL), output


@pytest.mark.parametrize("uri", ["gs://shelf/models/none", "gs://no-such-bucket/x"])
def test_what_is_not_there_is_named(bucket: gcs.Store, initializer: Make, uri: str) -> None:
    code, output = initializer(STORAGE_EMULATOR_HOST=bucket.address).run("model", uri)
    assert (code, "was not found: correct the bucket or the path" in output) == (66, True), output


def test_an_account_that_may_not_read_is_answered_with_what_to_do(bucket: gcs.Store, initializer: Make) -> None:
    bucket.refuses = True
    code, output = initializer(STORAGE_EMULATOR_HOST=bucket.address).run("dataset", "gs://shelf/models/tiny")
    assert (code, "access refused (403)" in output) == (66, True), output
    assert "give the pod's service account that access" in output
