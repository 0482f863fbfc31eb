"""A run ends by itself, with 0, when nobody asks its samplers and it makes no step."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from runner.tests.samples import plan_of

from stoker.contract.exits import ExitCode, RunError
from stoker.node import launch
from stoker.node.idle import Idleness, traffic_of
from stoker.node.launch import Child
from stoker.node.signals import Signals
from stoker.rank.folders import LocalFolder, SharedFolder, Verdict
from stoker.rank.pulse import SAVING, TRAINING, Beat, Pulse
from stoker.rollouts.addresses import addresses_in

METRICS = """# HELP vllm:request_success_total Count of successfully processed requests.
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="base"}} {0}.0
vllm:request_success_total{{engine="0",finished_reason="length",model_name="base"}} 2.0
vllm:num_requests_running{{engine="0",model_name="base"}} {1}.0
vllm:num_requests_waiting{{engine="0",model_name="base"}} 0.0
"""
WAITING = Beat(9, 3, TRAINING, 1)
QUIET = {"a": (5.0, 0.0), "b": (2.0, 0.0)}


class Sampler(ThreadingHTTPServer):
    """A sampler that tells its metrics to whoever has the key."""

    def __init__(self) -> None:
        self.ended, self.running, self.key = 3, 0, ""
        super().__init__(("127.0.0.1", 0), Metrics)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Metrics(BaseHTTPRequestHandler):
    """Answers with what vLLM counts."""

    def do_GET(self) -> None:
        sampler = self.server
        assert isinstance(sampler, Sampler)
        open_to_all = not sampler.key or self.headers.get("Authorization") == f"Bearer {sampler.key}"
        body = METRICS.format(sampler.ended, sampler.running).encode()
        self.send_response(200 if open_to_all and self.path == "/metrics" else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def sampler() -> Iterator[Sampler]:
    server = Sampler()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def quiet_until(seconds: float) -> Idleness:
    """Return what has seen nothing happen for so long, of at most 60 seconds."""
    idleness = Idleness(60, 0.0)
    assert not idleness.is_over(QUIET, WAITING, 0.0), "what it had not seen before is news"
    assert not idleness.is_over(QUIET, WAITING, seconds)
    return idleness


def test_nothing_for_long_enough_is_the_end() -> None:
    assert quiet_until(59).is_over(QUIET, WAITING, 60.0)


@pytest.mark.parametrize(
    ("traffic", "beat"),
    [
        ({**QUIET, "b": (3.0, 0.0)}, WAITING),
        ({**QUIET, "b": (2.0, 1.0)}, WAITING),
        ({**QUIET, "c": (0.0, 0.0)}, WAITING),
        ({"a": (0.0, 0.0)}, WAITING),
        ({}, WAITING),
        (QUIET, Beat(10, 4, TRAINING, 1)),
        (QUIET, Beat(10, 3, SAVING, 1)),
        (QUIET, None),
    ],
    ids=["ended", "running", "new sampler", "sampler anew", "no answer", "step", "checkpoint", "not training"],
)
def test_what_happens_starts_the_time_anew(traffic: dict[str, tuple[float, float]], beat: Beat | None) -> None:
    idleness = quiet_until(50)
    assert not idleness.is_over(traffic, beat, 61.0)
    assert not idleness.is_over(traffic, WAITING, 110.0)


def test_signs_of_life_alone_are_no_work() -> None:
    assert quiet_until(50).is_over(QUIET, Beat(1000, 3, TRAINING, 1), 60.0)


def test_a_sampler_that_is_away_for_a_while_proves_nothing() -> None:
    idleness = quiet_until(10)
    assert not idleness.is_over({"a": (5.0, 0.0)}, WAITING, 20.0)
    assert idleness.is_over(QUIET, WAITING, 60.0)


def test_samplers_tell_their_requests_to_who_has_the_key(sampler: Sampler) -> None:
    sampler.running = 2
    addresses = addresses_in(f"{sampler.address},http://127.0.0.1:1,http://absent.invalid:8080")
    place = f"127.0.0.1:{sampler.server_port}"
    assert traffic_of(addresses, "") == {place: (5.0, 2.0)}
    sampler.key = "the-key"
    assert traffic_of(addresses, "another") == {}
    assert traffic_of(addresses, "the-key") == {place: (5.0, 2.0)}


def test_an_idle_run_saves_and_ends_with_0(
    sampler: Sampler,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    own_signals: None,
) -> None:
    monkeypatch.setattr(launch, "_POLL_SECONDS", 0.01)
    monkeypatch.setenv("STOKER_SAMPLERS", sampler.address)
    told = {"STOKER_SAMPLERS": sampler.address, "STOKER_IDLE_SECONDS": "1", "STOKER_WORKSPACE": str(tmp_path)}
    model = {"STOKER_ARG_MODEL_NAME_OR_PATH": "org/model", "STOKER_ARG_DATASET_NAME": "org/data"}
    plan = plan_of(env={**told, **model, "PET_NNODES": "1"})
    shared, local = SharedFolder(tmp_path, "r", 0), LocalFolder(tmp_path)
    Pulse(local.ranks, 0).beat(TRAINING, 3)
    child = Child(os.posix_spawn("/bin/sleep", ["sleep", "30"], dict(os.environ), setsid=True))
    signals = Signals()

    def until_told() -> None:  # as ranks do, which save and end
        while not local.stop_flag.exists():
            time.sleep(0.01)
        os.killpg(child.pid, signal.SIGTERM)

    ranks = threading.Thread(target=until_told)
    ranks.start()
    assert launch._watch(plan, shared, local, signals, child) is None
    ranks.join()
    stopped = Verdict(ExitCode.STOPPED, "stopped at step 3, checkpoint saved")
    assert launch._unless_idle(stopped, SharedFolder(tmp_path, "r", 1)) == Verdict(
        ExitCode.FINISHED, "no request has reached the samplers for 1 s (stopped at step 3, checkpoint saved)"
    )
    assert "no request has reached the samplers for 1 s: saving a checkpoint, and ending" in capfd.readouterr().err
    crashed = Verdict(ExitCode.CRASHED, "x")
    assert launch._unless_idle(crashed, shared) == crashed
    assert launch._unless_idle(stopped, SharedFolder(tmp_path, "another", 0)) == stopped


def test_a_limit_needs_samplers_and_a_number() -> None:
    model = {"STOKER_ARG_MODEL_NAME_OR_PATH": "org/model", "STOKER_ARG_DATASET_NAME": "org/data"}
    assert plan_of(env=model).idle_seconds == 0
    with pytest.raises(RunError, match="STOKER_IDLE_SECONDS is for a runtime with samplers") as refused:
        plan_of(env={**model, "STOKER_IDLE_SECONDS": "600"})
    assert refused.value.code is ExitCode.CONFIG
    with pytest.raises(RunError, match="write a whole number of seconds"):
        plan_of(env={**model, "STOKER_IDLE_SECONDS": "soon", "STOKER_SAMPLERS": "http://a:1"})
