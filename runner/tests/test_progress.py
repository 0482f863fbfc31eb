"""Progress reaches Trainer's status server, never too often, and the last word always."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from stoker import progress
from stoker.progress import ProgressReporter, status_body


class StatusServer(HTTPServer):
    """Records what is posted, with the time and the token; answers as slowly and as badly as it is told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.posts: list[tuple[float, dict[str, Any]]] = []
        self.tokens: list[str] = []
        self.answer = 200
        self.delay = 0.0


class _Handler(BaseHTTPRequestHandler):
    server: StatusServer

    def do_POST(self) -> None:
        """Record one update."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.posts.append((time.monotonic(), body))
        self.server.tokens.append(self.headers["Authorization"])
        time.sleep(self.server.delay)
        self.send_response(self.server.answer)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the test's output clean."""


@contextmanager
def serving() -> Iterator[StatusServer]:
    """Serve until the end of the block."""
    server = StatusServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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
    gaps = [later - earlier for (earlier, _), (later, _) in zip(server.posts, server.posts[1:-1], strict=False)]
    assert all(gap > 0.25 for gap in gaps)
    assert 2 <= len(server.posts) <= took / 0.3 + 2


def test_closing_right_after_the_first_word_posts_it(server: StatusServer) -> None:
    reporter = reporter_to(server)
    reporter.report(status_body(1, 2, None, {}))
    reporter.close()
    assert percentages(server) == [50]


def test_closing_does_not_wait_for_the_next_turn(server: StatusServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN", 8.0)
    reporter = reporter_to(server)
    reporter.report(status_body(1, 2, None, {}))
    while not server.posts:
        time.sleep(0.01)
    reporter.report(status_body(2, 2, None, {}))
    started = time.monotonic()
    reporter.close()
    assert time.monotonic() - started < 4
    assert percentages(server) == [50, 100]


def test_training_never_waits_for_a_slow_server(server: StatusServer) -> None:
    server.delay = 0.5
    reporter = reporter_to(server)
    started = time.monotonic()
    for step in range(50):
        reporter.report(status_body(step, 50, None, {}))
    assert time.monotonic() - started < 0.2
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


def test_without_a_server_nothing_happens() -> None:
    reporter = ProgressReporter({})
    reporter.report(status_body(1, 2, None, {}))
    reporter.close()


def test_one_value_too_long_does_not_refuse_the_whole_update() -> None:
    metrics = {"n" * 100: 1.0, "big": 1e300, "nan": float("nan"), "inf": float("inf")}
    status = status_body(5, 10, 12.4, metrics)["trainerStatus"]
    assert [metric["name"] for metric in status["metrics"]] == ["n" * 64, "big"]
    assert all(len(metric["value"]) <= 64 for metric in status["metrics"])
    assert status["estimatedRemainingSeconds"] == 12


@pytest.mark.parametrize(
    ("step", "total", "percentage"), [(0, 10, 0), (3, 10, 30), (10, 10, 100), (11, 10, 100), (1, 0, 0)]
)
def test_percentages(step: int, total: int, percentage: int) -> None:
    assert status_body(step, total, None, {})["trainerStatus"]["progressPercentage"] == percentage


def test_too_many_metrics_are_cut() -> None:
    metrics = {f"m{number}": 1.0 for number in range(300)}
    assert len(status_body(1, 2, None, metrics)["trainerStatus"]["metrics"]) == 256


def test_an_estimate_is_never_negative() -> None:
    assert status_body(1, 2, -3.0, {})["trainerStatus"]["estimatedRemainingSeconds"] == 0
