"""Repositories of a hub over HTTP, by the hub's own client."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable

import pytest

from fetch.conftest import Initializer
from fetch.hub import COMMIT, Hub, Repository

# The client writes to the disk in pieces of 10 MiB.
WEIGHTS = os.urandom(24 * 2**20)
MODEL = {
    "config.json": b'{"model_type": "llama"}',
    "chat_template.jinja": b"{{ messages }}",
    "tokenizer.model": b"sentencepiece",
    "model.safetensors": WEIGHTS,
}
LEFT_OUT = {"pytorch_model.bin": WEIGHTS, ".gitattributes": b"*"}
Make = Callable[..., Initializer]


@pytest.fixture
def model(hub: Hub) -> Repository:
    repository = Repository({**MODEL, **LEFT_OUT})
    hub.repositories["models/org/tiny"] = repository
    return repository


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(("variable", "slash"), [("HF_ENDPOINT", ""), ("ENDPOINT", ""), ("HF_ENDPOINT", "/")])
def test_a_model_comes_from_a_mirror_and_is_fetched_once(
    hub: Hub, initializer: Make, variable: str, slash: str
) -> None:
    container = initializer(**{variable: f"{hub.address}{slash}"})
    code, output = container.run("model", "hf://org/tiny")
    assert code == 0, output
    assert container.files("model") == MODEL
    record = json.loads((container.workspace / "model/.stoker-fetch.json").read_text())
    assert (record["revision"], record["uri"]) == (COMMIT, "hf://org/tiny")
    sent = sum(hub.sent.values())
    assert sent == sum(map(len, MODEL.values()))
    code, output = container.run("model", "hf://org/tiny")
    assert (code, "nothing to fetch" in output) == (0, True)
    assert sum(hub.sent.values()) == sent


def test_a_killed_download_goes_on_where_it_stopped(hub: Hub, model: Repository, initializer: Make) -> None:
    model.seconds_per_block = 0.01
    container = initializer(HF_ENDPOINT=hub.address)
    killed = container.start("model", "hf://org/tiny")
    container.wait_for_bytes(10 * 2**20)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not (container.workspace / "model").exists()
    hub.forget_sent()
    model.seconds_per_block = 0
    assert container.run("model", "hf://org/tiny")[0] == 0
    assert container.files("model") == MODEL
    assert 0 < hub.sent["model.safetensors"] <= 14 * 2**20


def test_a_stop_is_answered_in_time_and_resumable(hub: Hub, model: Repository, initializer: Make) -> None:
    model.seconds_per_block = 1.0
    container = initializer(HF_ENDPOINT=hub.address)
    stopped = container.start("model", "hf://org/tiny")
    assert stopped.stdout is not None
    assert "fetching hf://org/tiny" in stopped.stdout.readline()
    stopped.send_signal(signal.SIGTERM)
    output, _ = stopped.communicate(timeout=120)
    assert (stopped.returncode, "stopped by a signal" in output) == (75, True), output


def test_a_stop_is_answered_while_a_server_keeps_silent(initializer: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        container = initializer(HF_ENDPOINT=f"http://127.0.0.1:{silent.getsockname()[1]}")
        stopped = container.start("model", "hf://org/tiny")
        silent.accept()
        stopped.send_signal(signal.SIGTERM)
        output, _ = stopped.communicate(timeout=120)
    assert (stopped.returncode, "stopped by a signal" in output) == (75, True), output


def test_connections_that_break_and_a_busy_server_are_waited_for(
    hub: Hub, model: Repository, initializer: Make
) -> None:
    model.cut, model.cuts, model.errors = 11 * 2**20, 2, 2
    container = initializer(HF_ENDPOINT=hub.address)
    code, output = container.run("model", "hf://org/tiny")
    assert code == 0, output
    assert container.files("model") == MODEL
    # Each connection went on where the one before it broke.
    assert hub.sent["model.safetensors"] <= len(WEIGHTS) + 4 * 2**20


def test_a_signed_address_that_expired_is_asked_for_anew_and_not_shown(
    hub: Hub, model: Repository, initializer: Make
) -> None:
    model.signed, model.expired = True, 1
    container = initializer(HF_ENDPOINT=hub.address)
    code, output = container.run("model", "hf://org/tiny")
    assert code == 0, output
    assert container.files("model") == MODEL
    assert "403" in output
    assert "hunter2" not in output


def test_a_signed_address_that_breaks_off_is_not_shown(hub: Hub, model: Repository, initializer: Make) -> None:
    model.signed, model.cut, model.cuts = True, 11 * 2**20, 1
    code, output = initializer(HF_ENDPOINT=hub.address).run("model", "hf://org/tiny")
    assert code == 0, output
    assert "hunter2" not in output


def test_content_that_does_not_match_its_checksum_is_fetched_again(
    hub: Hub, model: Repository, initializer: Make
) -> None:
    model.broken = 1
    container = initializer(HF_ENDPOINT=hub.address)
    code, output = container.run("model", "hf://org/tiny")
    assert (code, "model.safetensors: its sha256 checksum is not" in output) == (0, True), output
    assert container.files("model") == MODEL


def test_content_that_never_matches_is_refused(hub: Hub, model: Repository, initializer: Make) -> None:
    model.broken = 100
    container = initializer(HF_ENDPOINT=hub.address)
    code, output = container.run("model", "hf://org/tiny")
    assert (code, "is broken" in output) == (65, True), output
    assert not (container.workspace / "model").exists()


def test_a_gated_model_is_answered_with_where_to_accept_its_terms(
    hub: Hub, model: Repository, initializer: Make
) -> None:
    model.gated = True
    code, output = initializer(HF_ENDPOINT=hub.address).run("model", "hf://org/tiny")
    assert code == 66, output
    assert f"accept its terms at {hub.address}/org/tiny" in output
    assert "secret of spec.initializer.model.secretRef as ACCESS_TOKEN" in output


def test_a_server_that_may_not_read_a_model_is_told_which_value_takes_a_token(
    hub: Hub, model: Repository, initializer: Make
) -> None:
    model.gated = True
    container = initializer(HF_ENDPOINT=hub.address)
    code, output = container.run("model", "hf://org/tiny", STOKER_FETCH_FOR="serving")
    assert code == 66, output
    assert "put a token into the secret of model.secretName as ACCESS_TOKEN" in output
    code, output = container.run("model", "hf://org/none", STOKER_FETCH_FOR="serving")
    assert code == 66, output
    assert "if it is private, put a token into the secret of model.secretName" in output


def test_a_private_model_needs_the_token_of_the_secret(hub: Hub, model: Repository, initializer: Make) -> None:
    model.token = "hf_right"
    container = initializer(HF_ENDPOINT=hub.address)
    for env in ({}, {"ACCESS_TOKEN": "hf_wrong"}):
        code, output = container.run("model", "hf://org/tiny", **env)
        assert code == 66, output
        assert "correct the name; if it is private" in output
        assert "hf_wrong" not in output
    assert container.run("model", "hf://org/tiny", ACCESS_TOKEN="hf_right\n")[0] == 0
    assert "hf_right" not in (container.workspace / "model/.stoker-fetch.json").read_text()


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("hf://org/missing", "was not found at"),
        ("hf://org/tiny@v9", "org/tiny has no revision 'v9'"),
        ("hf://org/tiny/missing", "has no files"),
    ],
)
def test_what_is_not_there_is_named(hub: Hub, initializer: Make, uri: str, message: str) -> None:
    code, output = initializer(HF_ENDPOINT=hub.address).run("model", uri)
    assert (code, message in output) == (66, True), output


def test_a_data_set_keeps_its_layout_and_a_folder_of_it_too(hub: Hub, initializer: Make) -> None:
    files = {"README.md": b"card", "data/train.jsonl": b"{}\n", "other/test.jsonl": b"{}\n"}
    hub.repositories["datasets/org/data"] = Repository(files)
    container = initializer(HF_ENDPOINT=hub.address)
    assert container.run("dataset", "hf://org/data/data")[0] == 0
    assert container.files("dataset") == {"data/train.jsonl": b"{}\n"}


def test_a_branch_that_moved_is_not_taken_under_checkpoints(hub: Hub, model: Repository, initializer: Make) -> None:
    container = initializer(HF_ENDPOINT=hub.address, STOKER_JOB_ID="one")
    assert container.run("model", "hf://org/tiny")[0] == 0
    model.commit, model.files["config.json"] = "d00d" * 10, b"{}"
    # A restart of the job goes on with what it began with; another job is told.
    assert container.run("model", "hf://org/tiny")[0] == 0
    assert container.files("model") == MODEL
    code, output = container.run("model", "hf://org/tiny", STOKER_JOB_ID="two")
    assert (code, f"has revision {COMMIT} of it" in output) == (78, True), output
    assert container.run("model", "hf://org/tiny", STOKER_JOB_ID="two", STOKER_FETCH_REPLACE="true")[0] == 0
    assert container.files("model")["config.json"] == b"{}"


@pytest.mark.usefixtures("model")
def test_two_pods_that_share_a_volume_fetch_once(hub: Hub, initializer: Make) -> None:
    container = initializer(HF_ENDPOINT=hub.address)
    both = [container.start("model", "hf://org/tiny") for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert hub.sent["model.safetensors"] == len(WEIGHTS)
    assert container.files("model") == MODEL


@pytest.mark.full  # half a minute of waiting
def test_a_server_that_is_not_there_is_given_up_in_time(initializer: Make) -> None:
    code, output = initializer(HF_ENDPOINT="http://127.0.0.1:9").run("model", "hf://org/tiny")
    assert (code, "gave up after 6 tries" in output) == (69, True), output
