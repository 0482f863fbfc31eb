"""Progress reaches Trainer's status server, never too often, and the last word always."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from runner.tests.status_server import StatusServer, serving

from stoker.rank import progress
from stoker.rank.progress import Progress, ProgressReporter, line_of, seconds_left, status_body


@pytest.fixture
def server() -> Iterator[StatusServer]:
    with serving() as server:
        yield server


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN", 0.3)


def reporter_to(server: StatusServer, **more: str) -> ProgressReporter:
    return ProgressReporter({"KUBEFLOW_TRAINER_SERVER_URL": f"http://127.0.0.1:{server.server_port}/", **more})


def percentages(server: StatusServer) -> list[int]:
    return [body["trainerStatus"]["progressPercentage"] for _, body in server.posts]


def test_updates_are_spaced_and_the_last_is_never_lost(server: StatusServer) -> None:
    reporter = reporter_to(server)
    started = time.monotonic()
    for step in range(101):
        reporter.report(status_body(step, 100, None, {}))
        time.sleep(0.005)
    took = time.monotonic() - started
    reporter.close()
    assert percentages(server)[-1] == 100
    assert percentages(server) == sorted(percentages(server))
    assert 2 <= len(server.posts) <= took / 0.3 + 2


def test_closing_right_after_the_first_word_posts_it(server: StatusServer) -> None:
    reporter = reporter_to(server)
    reporter.report(status_body(1, 2, None, {}))
    reporter.close()
    assert percentages(server) == [50]


def test_closing_does_not_wait_for_the_next_turn(server: StatusServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN", 600.0)
    reporter = reporter_to(server)
    reporter.report(status_body(1, 2, None, {}))
    while not server.posts:
        time.sleep(0.01)
    reporter.report(status_body(2, 2, None, {}))
    started = time.monotonic()
    reporter.close()
    assert time.monotonic() - started < 300
    assert percentages(server) == [50, 100]


def test_training_never_waits_for_a_slow_server(server: StatusServer) -> None:
    server.delay = 2.0
    reporter = reporter_to(server)
    started = time.monotonic()
    for step in range(50):
        reporter.report(status_body(step, 50, None, {}))
    assert time.monotonic() - started < 25 * server.delay
    reporter.close()
    assert percentages(server)[-1] == 98


def test_the_token_is_read_anew_for_each_post(server: StatusServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    reporter = reporter_to(server, KUBEFLOW_TRAINER_SERVER_TOKEN=str(token))
    reporter.report(status_body(0, 2, None, {}))
    while not server.posts:
        time.sleep(0.01)
    token.write_text("new\n")
    reporter.report(status_body(2, 2, None, {}))
    reporter.close()
    assert server.tokens == ["Bearer old", "Bearer new"]


def test_a_server_that_refuses_is_mentioned_once(server: StatusServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.answer = 403
    reporter = reporter_to(server)
    for step in range(3):
        reporter.report(status_body(step, 2, None, {}))
        time.sleep(0.35)
    reporter.close()
    assert len(server.posts) >= 2
    assert capsys.readouterr().err.count("progress could not be reported") == 1


def test_what_a_server_could_not_take_is_posted_again(server: StatusServer) -> None:
    server.answer = 503
    reporter = reporter_to(server)
    reporter.report(status_body(2, 2, None, {}))
    while len(server.answers) < 2:
        time.sleep(0.01)
    server.answer = 200
    reporter.close()
    assert (server.answers[-1], server.answers.count(200), percentages(server)[-1]) == (200, 1, 100)


def test_a_server_that_hangs_is_not_waited_for_twice(server: StatusServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_REQUEST_SECONDS", 1.0)
    server.delay = 5.0
    reporter = reporter_to(server)
    reporter.report(status_body(2, 2, None, {}))
    reporter.close()
    assert "stoker-progress" not in {thread.name for thread in threading.enumerate()}, "it tries again"


def test_an_answer_that_is_not_http_does_not_end_the_reporting(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reporter = ProgressReporter({"KUBEFLOW_TRAINER_SERVER_URL": f"http://127.0.0.1:{listener.getsockname()[1]}/"})
        listener.settimeout(10)
        for step in range(2):
            reporter.report(status_body(step, 2, None, {}))
            with listener.accept()[0] as connection:
                connection.recv(2**16)
                # An alert of TLS.
                connection.sendall(b"\x15\x03\x01\x00\x02\x02\x46\r\n\r\n")
    reporter.close()
    assert capsys.readouterr().err.count("progress could not be reported") == 1


def test_without_a_server_nothing_happens() -> None:
    reporter = ProgressReporter({})
    reporter.report(status_body(1, 2, None, {}))
    reporter.close()


def test_one_value_too_long_does_not_refuse_the_whole_update() -> None:
    metrics = {"n" * 100: 1.0, "big": 1e300, "nan": float("nan"), "inf": float("inf")}
    status = status_body(5, 10, 12.4, metrics)["trainerStatus"]
    assert [metric["value"] for metric in status["metrics"]] == ["1", "1e+300"]
    assert all(len(metric["name"]) <= 64 for metric in status["metrics"])
    assert all(len(metric["value"]) <= 64 for metric in status["metrics"])
    assert status["estimatedRemainingSeconds"] == 12


@pytest.mark.parametrize(
    ("step", "total", "percentage"), [(999, 1000, 99), (0, 10, 0), (3, 10, 30), (10, 10, 100), (11, 10, 100), (1, 0, 0)]
)
def test_percentages(step: int, total: int, percentage: int) -> None:
    assert status_body(step, total, None, {})["trainerStatus"]["progressPercentage"] == percentage


def test_too_many_metrics_are_cut() -> None:
    metrics = {f"m{number}": 1.0 for number in range(300)}
    assert len(status_body(1, 2, None, metrics)["trainerStatus"]["metrics"]) == 256


def test_an_estimate_is_never_negative() -> None:
    assert status_body(1, 2, -3.0, {})["trainerStatus"]["estimatedRemainingSeconds"] == 0


def test_names_that_differ_only_at_their_end_stay_apart_when_they_are_shortened() -> None:
    metrics = {"rewards/" + "x" * 80 + end: 1.0 for end in ("/mean", "/std")} | {"loss": 2.0}
    status = status_body(1, 2, None, metrics)["trainerStatus"]
    names = [metric["name"] for metric in status["metrics"]]
    assert len(set(names)) == 3
    assert all(len(name) <= 64 for name in names)
    assert names[-1] == "loss"
    assert status_body(1, 2, None, metrics)["trainerStatus"]["metrics"] == status["metrics"], "the same every time"


@pytest.mark.parametrize(
    ("first", "step", "elapsed", "left"),
    [(0, 0, 5.0, None), (0, 10, 5.0, 45.0), (80, 80, 5.0, None), (80, 90, 5.0, 5.0), (80, 100, 5.0, 0.0)],
)
def test_an_estimate_counts_only_what_this_attempt_did(
    first: int, step: int, elapsed: float, left: float | None
) -> None:
    assert seconds_left(first, step, 100, elapsed) == left


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (line_of(0, 100, None, {}), "step 0 of 100 (0 %)"),
        (
            line_of(12, 100, 90.2, {"loss": 1.23456, "learning_rate": 2e-4, "tokens_per_second": 5120.0}),
            "step 12 of 100 (12 %), 1:30 left, loss 1.235, learning rate 0.0002, 5120 tokens/s",
        ),
        (line_of(12, 100, 7261, {}), "step 12 of 100 (12 %), 2:01:01 left"),
        (line_of(100, 100, 0.0, {}), "step 100 of 100 (100 %)"),
    ],
)
def test_a_line_says_what_matters(line: str, shown: str) -> None:
    assert line == shown


class Screen(io.StringIO):
    """Text that goes to a terminal, or not."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._is_terminal = terminal

    def isatty(self) -> bool:
        """Return whether this is a terminal."""
        return self._is_terminal


def test_a_terminals_line_is_rewritten_and_left_there_at_the_end() -> None:
    screen = Screen(terminal=True)
    followed = Progress(0, 3, 1, {}, screen)
    for step in (1, 2, 3):
        followed.log(step, {"loss": 1.0})
    followed.close()
    *rewritten, end = screen.getvalue().split("\r")
    assert [line.removesuffix("\x1b[K").partition(",")[0] for line in rewritten] == [
        f"[stoker] step {step} of 3 ({100 * step // 3} %)" for step in range(4)
    ]
    assert end == "\n"


def test_without_a_terminal_there_is_a_line_now_and_then_and_always_the_last() -> None:
    screen = Screen(terminal=False)
    followed = Progress(0, 50, 1, {}, screen)
    for step in range(1, 51):
        followed.step(step)
        followed.log(step, {})
    followed.close()
    lines = screen.getvalue().splitlines()
    assert [lines[0], lines[-1]] == ["[stoker] step 0 of 50 (0 %)", "[stoker] step 50 of 50 (100 %)"]
    assert len(lines) == 2


def test_in_a_cluster_there_are_no_progress_lines() -> None:
    screen = Screen(terminal=False)
    followed = Progress(0, 1, 1, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, screen)
    followed.step(1)
    followed.close()
    assert screen.getvalue() == ""


def test_a_stopped_runs_last_step_is_told_and_is_not_100_percent(server: StatusServer) -> None:
    environ = {"KUBEFLOW_TRAINER_SERVER_URL": f"http://127.0.0.1:{server.server_port}/"}
    followed = Progress(0, 1000, 2, environ, Screen(terminal=False))
    for step in range(1, 1000):
        followed.step(step)
    followed.close()
    last = server.posts[-1][1]["trainerStatus"]
    assert last["progressPercentage"] == 99
    assert {metric["name"]: metric["value"] for metric in last["metrics"]} == {"step": "999", "world_size": "2"}


def test_a_run_that_fails_tells_its_last_step_too(server: StatusServer) -> None:
    code = """
from stoker.rank import worker
from stoker.rank.progress import Progress
Progress(0, 10, 1).log(3, {"loss": 1.0})
worker.leave(70)
"""
    url = f"http://127.0.0.1:{server.server_port}/"
    source = str(Path(progress.__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": source, "KUBEFLOW_TRAINER_SERVER_URL": url}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=False)
    assert done.returncode == 70
    assert percentages(server)[-1] == 30


def test_tokens_per_second_are_those_since_the_last_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    fresh = Progress(0, 10, 1, {}, Screen(terminal=False))
    now[0] += 10
    assert fresh.log(1, {}, tokens=5000)["tokens_per_second"] == 500
    now[0] += 5
    assert fresh.log(2, {"loss": 1.0}, tokens=7500) == {"loss": 1.0, "tokens_per_second": 500}
    resumed = Progress(5, 10, 1, {}, Screen(terminal=False))
    now[0] += 10
    assert "tokens_per_second" not in resumed.log(6, {}, tokens=50000), "those of earlier attempts took no time here"
    now[0] += 10
    assert resumed.log(7, {}, tokens=51000)["tokens_per_second"] == 100
