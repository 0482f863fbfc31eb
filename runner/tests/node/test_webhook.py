"""Whoever waits for a run is told how it ended, and a run never suffers from it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from runner.tests.samples import plan_of
from runner.tests.webhook_receiver import PATH, Receiver, receiving

from stoker.contract.exits import ExitCode, RunError
from stoker.node import launch, webhook
from stoker.node.signals import Signals
from stoker.rank.folders import Verdict


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    with receiving() as server:
        monkeypatch.setenv("STOKER_WEBHOOK", server.address)
        yield server


def ended(monkeypatch: pytest.MonkeyPatch, workspace: Path, verdict: Verdict, node: int = 0) -> ExitCode:
    """End a run of two nodes with a verdict."""
    env = {
        "STOKER_WORKSPACE": str(workspace),
        "STOKER_TERMINATION_LOG": str(workspace / "termination-log"),
        "STOKER_ARG_MODEL_NAME_OR_PATH": "org/model",
        "STOKER_ARG_DATASET_NAME": "org/data",
        "STOKER_JOB_ID": "first-run",
        "PET_NODE_RANK": str(node),
        "PET_MASTER_ADDR": "127.0.0.1",
    }
    signals = Signals.__new__(Signals)
    signals.stopped_at = None
    monkeypatch.setattr(launch, "_PEER_WORD_SECONDS", 0.05)
    monkeypatch.setattr(launch, "_attempt", lambda *_: verdict)
    return launch.run(plan_of(env=env), signals)


def test_node_0_tells_how_a_run_ended(receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JOBSET_NAME", "tune")
    assert ended(monkeypatch, tmp_path, Verdict(ExitCode.FINISHED, "finished: world size 2")) is ExitCode.FINISHED
    (told,) = receiver.told
    assert (told["event"], told["code"], told["final"], told["job_id"]) == ("finished", 0, True, "first-run")
    assert (told["run"], told["text"]) == ("tune", "run tune finished: finished: world size 2")
    assert told["output"] == str(tmp_path / "output")
    # Trailing commas and the like would be refused by whoever reads it.
    assert told["time"].endswith("Z")


def test_the_other_nodes_tell_nothing(receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ended(monkeypatch, tmp_path, Verdict(ExitCode.CRASHED, "rank 2 died"), node=1)
    assert not receiver.told


@pytest.mark.parametrize(
    ("code", "event", "final"),
    [
        (ExitCode.CRASHED, "failed", False),
        (ExitCode.STOPPED, "stopped", False),
        (ExitCode.BAD_DATA, "failed", True),
        (ExitCode.UNAVAILABLE, "failed", False),
    ],
)
def test_each_end_has_its_event(code: ExitCode, event: str, final: bool) -> None:
    told = webhook.end_of_run(code, "why", {"job_id": "j"})
    assert (told["event"], told["final"], told["meaning"]) == (event, final, code.meaning)


def test_a_refused_run_is_told_too(receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STOKER_WORKSPACE", str(tmp_path))
    monkeypatch.setenv("STOKER_TERMINATION_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("JOBSET_NAME", "tune")
    with pytest.raises(RunError):
        launch.start(["trl.scripts.sft", "--no_such_flag", "1"])
    (told,) = receiver.told
    assert (told["run"], told["event"], told["final"]) == ("tune", "failed", True)
    assert "no_such_flag" in told["message"]
    monkeypatch.setenv("PET_NODE_RANK", "1")
    with pytest.raises(RunError):
        launch.start(["trl.scripts.sft", "--no_such_flag", "1"])
    assert len(receiver.told) == 1, "all nodes are refused, and one tells"


@pytest.mark.parametrize(
    ("status", "drip", "why"),
    [
        (500, False, "the receiver answered 500"),
        (302, False, "the receiver answered 302"),
        (200, True, "no answer within 1 s"),
    ],
)
def test_a_receiver_that_fails_is_a_warning_in_bounded_time(
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    status: int,
    drip: bool,
    why: str,
) -> None:
    receiver.status, receiver.drip = status, drip
    monkeypatch.setattr(webhook, "_SECONDS", 1.0)
    started = time.monotonic()
    assert ended(monkeypatch, tmp_path, Verdict(ExitCode.FINISHED, "finished")) is ExitCode.FINISHED
    assert time.monotonic() - started < 300, "the slow one takes twelve minutes"
    lines = capfd.readouterr().err
    assert f"warning: no notification was sent to STOKER_WEBHOOK ({why}" in lines
    assert "a-secret-of-the-team" not in lines
    assert "127.0.0.1" not in lines


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert not webhook.tell(f"http://127.0.0.1:{unused.getsockname()[1]}{PATH}", {})
    assert "ConnectionRefusedError" in capfd.readouterr().err
    assert not webhook.tell("http://127.0.0.1:1/", {}, seconds=0.5)
    assert "no time left" in capfd.readouterr().err
    assert not webhook.tell("", {})
    assert capfd.readouterr().err == ""


def test_secrets_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_WEBHOOK", "https://hooks.example/abc")
    told = webhook.end_of_run(ExitCode.CRASHED, "token hf_0123456789abcdefghij at https://hooks.example/abc", {})
    assert told["message"] == "token (not shown) at (not shown)"


@pytest.mark.parametrize("address", ["chat.example", "ftp://a/b", "http://", "http://a:b/c", "https://a/b c\n"])
def test_an_address_that_is_none_is_refused_before_training(address: str) -> None:
    model = {"STOKER_ARG_MODEL_NAME_OR_PATH": "org/model", "STOKER_ARG_DATASET_NAME": "org/data"}
    with pytest.raises(RunError, match="STOKER_WEBHOOK is not an http or https address") as refused:
        plan_of(env={**model, "STOKER_WEBHOOK": address})
    assert refused.value.code is ExitCode.CONFIG
    assert address not in refused.value.message


def test_the_plan_does_not_show_the_address() -> None:
    model = {"STOKER_ARG_MODEL_NAME_OR_PATH": "org/model", "STOKER_ARG_DATASET_NAME": "org/data"}
    assert PATH not in str(plan_of(env={**model, "STOKER_WEBHOOK": f"https://hooks.example{PATH}"}))
