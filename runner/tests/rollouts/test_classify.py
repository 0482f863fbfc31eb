"""Reward models behind an address, asked as vLLM serves them: a real server with its form of answers."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from runner.tests.json_answers import JsonAnswers

from stoker.contract.exits import ExitCode, RunError
from stoker.rollouts.classify import RewardModel
from stoker.rollouts.failures import UserCodeError
from stoker.rollouts.rewards import Judges


class Server(ThreadingHTTPServer):
    """A stand-in for vLLM with a reward model: the score is the length of the text, less 10.

    Attributes:
        asked: bodies of the requests.
        failing: status codes to answer first.
        labels: how many scores it gives.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.failing: list[int] = []
        self.labels = 1
        self.pause = 0.0

    @property
    def address(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(JsonAnswers, BaseHTTPRequestHandler):
    """Answers `/classify`."""

    server: Server

    def do_POST(self) -> None:
        """Answer a request."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append({"path": self.path, **body})
        time.sleep(self.server.pause)
        if self.server.failing:
            self.answer({"error": {"message": "not now"}}, self.server.failing.pop(0))
            return
        texts = body["input"] if "input" in body else ["".join(m["content"] for m in body["messages"])]
        data = [
            {"index": index, "label": "LABEL_0", "probs": [len(text) - 10.0] * self.server.labels, "num_classes": 1}
            for index, text in enumerate(texts)
        ]
        self.answer({"id": "classify-1", "object": "list", "model": "rm", "data": data[::-1], "usage": {}})


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


def test_texts_are_judged_in_one_request_by_raw_scores(server: Server) -> None:
    model = RewardModel(server.address, 10)
    assert asyncio.run(model.score(["abc", "abc"], ["d", "defgh"])) == [-6.0, -2.0]
    assert server.asked == [{"path": "/classify", "input": ["abcd", "abcdefgh"], "use_activation": False}]


def test_conversations_are_judged_by_the_servers_template(server: Server) -> None:
    model = RewardModel(f"{server.address}/classify?model=judge", 10)
    prompt = [{"role": "user", "content": "abc"}]
    completions = [[{"role": "assistant", "content": text}] for text in ("d", "de")]
    assert asyncio.run(model.score([prompt, prompt], completions)) == [-6.0, -5.0]
    assert {asked["model"] for asked in server.asked} == {model.name} == {"judge"}
    assert [*map(len, (asked["messages"] for asked in server.asked))] == [2, 2]


def test_a_busy_server_is_asked_again(server: Server) -> None:
    server.failing = [503, 429]
    assert asyncio.run(RewardModel(server.address, 600).score(["abc"], ["d"])) == [-6.0]


def test_a_server_that_stays_away_ends_the_run_as_a_missing_peer(server: Server) -> None:
    server.failing = [503] * 100
    with pytest.raises(RunError) as ended:
        asyncio.run(RewardModel(server.address, 0.5).score(["abc"], ["d"]))
    assert ended.value.code is ExitCode.UNAVAILABLE
    assert "gave no answer in 0.5 s (--reward_seconds): 503" in str(ended.value)


def test_the_time_of_a_request_begins_when_it_is_sent(server: Server) -> None:
    server.pause = 4
    model = RewardModel(server.address, 10)
    model._slots = asyncio.Semaphore(1)
    prompt = [{"role": "user", "content": "abc"}]
    completions = [[{"role": "assistant", "content": text}] for text in ("d", "de", "def")]
    assert asyncio.run(model.score([prompt] * 3, completions)) == [-6.0, -5.0, -4.0]


def test_a_server_that_hangs_does_not_hold_up_a_stop(server: Server) -> None:
    server.pause = 600

    async def stopped() -> None:
        task = asyncio.create_task(RewardModel(server.address, 600).score(["abc"], ["d"]))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    began = time.monotonic()
    asyncio.run(stopped())
    assert time.monotonic() - began < 300


@pytest.mark.parametrize("code", [400, 404])
def test_a_refusal_is_told_with_the_servers_words(server: Server, code: int) -> None:
    server.failing = [code]
    with pytest.raises(UserCodeError, match=rf"refused a sample \({code} .*not now"):
        asyncio.run(RewardModel(server.address, 10).score(["abc"], ["d"]))


def test_a_classifier_is_no_reward_model(server: Server) -> None:
    server.labels = 2
    with pytest.raises(UserCodeError, match="gives 2 scores"):
        asyncio.run(RewardModel(server.address, 10).score(["abc"], ["d"]))


def test_models_and_functions_keep_their_order(server: Server) -> None:
    judges = Judges([server.address], None, (), 10)
    assert judges.names == ["127.0.0.1"]
    assert asyncio.run(judges.score({}, ["abc"], ["d"], [[1]])).rewards == [(-6.0,)]


CONVERSATION = [{"role": "user", "content": "2+2"}]


def test_a_reward_model_is_asked_before_the_first_step_in_the_form_of_the_data(server: Server) -> None:
    judges = Judges([server.address], None, (), 10)
    judges.check("2+2=", lambda _: None)
    judges.check(CONVERSATION, lambda _: None)
    text, conversation = server.asked
    assert text["input"] == ["2+2=."]
    assert conversation["messages"] == [*CONVERSATION, {"role": "assistant", "content": "."}]


@pytest.mark.parametrize(
    ("codes", "labels", "problem"),
    [
        ([404], 1, "refused a sample (404 "),
        ([400], 1, "refused a sample (400 "),
        ([], 2, "gives 2 scores: serve a reward model"),
    ],
)
def test_what_is_no_reward_model_is_told_before_the_first_step(
    server: Server, codes: list[int], labels: int, problem: str
) -> None:
    server.failing, server.labels = 2 * codes, labels
    with pytest.raises(RunError) as refused:
        Judges([server.address, f"{server.address}?model=other"], None, (), 10).check("2+2=", lambda _: None)
    assert refused.value.code is ExitCode.CONFIG
    # Both are told.
    assert [line.partition(problem)[0] for line in refused.value.message.splitlines()] == [
        f"the reward model at {server.address}/classify "
    ] * 2


def test_a_reward_model_that_is_still_starting_is_waited_for_and_a_stop_ends_the_wait(server: Server) -> None:
    server.failing, told = [503] * 4, list[str]()
    judges = Judges([server.address], None, (), 30)
    judges.check("2+2=", told.append)
    assert told == [f"waiting for the reward model at {server.address}/classify"] * len(told)
    assert told

    class StopError(BaseException):
        pass

    def stop(_reason: str) -> None:
        raise StopError

    server.pause = 600
    began = time.monotonic()
    with pytest.raises(StopError):
        judges.check("2+2=", stop)
    assert time.monotonic() - began < 300


def test_a_reward_model_that_never_comes_ends_with_69_before_the_first_step() -> None:
    with pytest.raises(RunError) as ended:
        Judges(["http://127.0.0.1:9"], None, (), 0.5).check("2+2=", lambda _: None)
    assert ended.value.code is ExitCode.UNAVAILABLE
    assert "the reward model at http://127.0.0.1:9/classify gave no answer in 0.5 s" in ended.value.message
