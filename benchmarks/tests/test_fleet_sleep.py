"""What the fleet's benchmark tells an engine that sleeps, and what it says of it; vLLM is a stand-in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from benchmarks import fleet
from benchmarks.fleet_sleep import Slept, of_sleeps, sleeps
from benchmarks.gpu import GpuError
from benchmarks.jobs import JobFailed
from runner.tests.json_answers import JsonAnswers


class Engine:
    """A server that sleeps; `answers` are the tokens of its next answers."""

    def __init__(self) -> None:
        self.asleep = False
        self.told: list[str] = []
        self.answers: list[list[int]] = []
        engine = self

        class Handler(JsonAnswers, BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known: dict[str, Any] = {
                    "/v1/models": {"data": [{"id": "base", "root": "/model", "parent": None}]},
                    "/is_sleeping": {"is_sleeping": engine.asleep},
                }
                self.answer(known[self.path])

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/completions":
                    self.answer({"choices": [{"token_ids": engine.answers.pop(0)}]})
                    return
                engine.told.append(self.path)
                engine.asleep = self.path.startswith("/sleep")
                self.answer({"results": [{}]})

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def test_an_engine_sleeps_at_each_level_and_loads_what_it_dropped(engine: Engine) -> None:
    engine.answers = [[7, 8]] * 3
    memory = iter([9000, 3000, 9000, 500])
    found = [*sleeps(engine.address, 1, 10, lambda: next(memory))]
    assert [(one.level, one.used, one.left) for one in found] == [(1, 9000, 3000), (2, 9000, 500)]
    assert engine.told == [
        *("/resume", "/sleep?level=1&mode=keep", "/wake_up", "/resume"),
        *("/sleep?level=2&mode=keep", "/wake_up?tags=weights", "/collective_rpc", "/wake_up?tags=kv_cache", "/resume"),
    ]


def test_an_engine_that_answers_otherwise_after_a_sleep_is_lost(engine: Engine) -> None:
    engine.answers = [[7, 8], [7, 9]]
    with pytest.raises(JobFailed, match=r"after a sleep of level 1 the engine answered \[7, 9\] instead of \[7, 8\]"):
        [*sleeps(engine.address, 1, 10, lambda: 0)]


def test_an_engine_that_does_not_start_is_lost(engine: Engine) -> None:
    gone = engine.address.replace("127.0.0.1", "127.0.0.2")
    with pytest.raises(JobFailed, match=r"the engine did not sleep or go on: vLLM has not started in 0\.1 s"):
        [*sleeps(gone, 1, 0.1, lambda: 0)]


def test_sleeps_are_told_by_their_level() -> None:
    found = [Slept(1, 0.5, 0.25, 9000, 3000), Slept(2, 0.125, 1.5, 9000, 500), Slept(1, 0.75, 0.25, 9000, 3000)]
    assert [*of_sleeps(found)] == [
        "sleep, level 1           0.62 s to sleep, 0.25 s to go on; 3000 of 9000 MiB of the GPU stay in use; 2 times",
        "sleep, level 2           0.12 s to sleep, 1.50 s to go on; 500 of 9000 MiB of the GPU stay in use; 1 times",
    ]
    assert [*of_sleeps([])] == ["sleep                    not measured: the engine never slept"]


def test_without_a_gpu_the_row_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def none() -> str:
        raise GpuError("this machine has no NVIDIA GPU")

    monkeypatch.setattr(fleet, "first_gpu", none)
    fleet.sleep(None)  # type: ignore[arg-type]  # nothing of it is used
    assert capsys.readouterr().out == "sleep: not measured: this machine has no NVIDIA GPU\n"
