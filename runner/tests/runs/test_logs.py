"""Logs of all pods are one, in order, and following them loses and repeats nothing."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner.tests.command_line import stoker
from runner.tests.runs.api_server import Cluster
from runner.tests.runs.objects import ended, jobset, pod, terminated, trainjob

from stoker.contract.exits import ExitCode
from stoker.runs import logs
from stoker.runs.client import Client
from stoker.runs.errors import UnreachableError
from stoker.runs.logs import LogLine, LogSource, line_of, merged, sources_of
from stoker.runs.run import QUEUE, Run, State, pod_of
from stoker.runs.words import state_of

NODE_0 = "tune-node-0-0-x0k0c"
NODE_1 = "tune-node-0-1-x0k1c"


def stamped(*seconds_and_texts: tuple[float, str]) -> str:
    return "".join(f"2026-11-22T10:00:{second:09.6f}Z {text}\n" for second, text in seconds_and_texts)


@pytest.fixture
def trained(cluster: Cluster, kubeconfig: Path) -> Cluster:
    """A cluster with a run of two nodes that has completed, with a sampler beside it."""
    sampler = pod("sampler", spec={"containers": [{"name": "vllm"}, {"name": "proxy"}]})
    cluster.add("trainjobs", trainjob(**ended("Complete", "AllJobsCompleted")))
    cluster.add("jobsets", jobset())
    cluster.add("pods", terminated(0), terminated(0, index=1), sampler)
    cluster.logs[NODE_0, "node"] = stamped((1, "one"), (3, "three"), (3.5, "bar 1\rbar 2"))
    cluster.logs[NODE_1, "node"] = stamped((2, "two"), (3, "three"))
    cluster.logs["tune-sampler-0-0-x0k0c", "vllm"] = stamped((2.5, "served"))
    return cluster


def test_all_pods_are_one_log(trained: Cluster) -> None:
    assert stoker("logs", "tune").stdout.splitlines() == [
        "node-0 | one",
        "node-1 | two",
        "sampler-0/vllm | served",
        "node-0         | three",
        "node-1         | three",
        "node-0         | bar 2",
    ]


def test_initializers_are_in_the_same_log(trained: Cluster) -> None:
    trained.add("pods", terminated(0, role="model-initializer"))
    trained.logs["tune-model-initializer-0-0-x0k0c", "model-initializer"] = stamped((0.5, "the model is there"))
    lines = stoker("logs", "tune").stdout.splitlines()
    assert lines[:2] == ["model-initializer | the model is there", "node-0            | one"]
    shown = stoker("logs", "tune", "--role", "model-initializer").stdout
    assert shown == "model-initializer | the model is there\n"


def test_a_part_of_the_log(trained: Cluster) -> None:
    assert stoker("logs", "tune", "--role", "node-1").stdout == "node-1 | two\nnode-1 | three\n"
    assert stoker("logs", "tune", "--role", "sampler-0/vllm").stdout == "sampler-0/vllm | served\n"
    assert stoker("logs", "tune", "--role", "node", "--tail", "1").stdout == "node-1 | three\nnode-0 | bar 2\n"
    lines = stoker("logs", "tune", "--role", "node-1", "--timestamps").stdout.splitlines()
    assert lines[0] == "2026-11-22T10:00:02.000000Z node-1 | two"
    line = json.loads(stoker("logs", "tune", "--role", "node-1", "--output", "json").stdout.splitlines()[0])
    assert (line["label"], line["container"], line["text"]) == ("node-1", "node", "two")


def test_pods_without_a_log(trained: Cluster) -> None:
    trained.logs.clear()
    result = stoker("logs", "tune")
    assert result.stdout == ""
    assert "`stoker status tune` lists its pods" in result.stderr


def test_a_node_that_is_gone_does_not_hide_the_other_logs(trained: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Client.log

    def broken(client: Client, name: str, *words: Any, **more: Any) -> Iterator[bytes]:
        if name == NODE_1:
            raise UnreachableError("https://cluster", "HTTP 500")
        yield from log(client, name, *words, **more)

    monkeypatch.setattr(Client, "log", broken)
    result = stoker("logs", "tune", "--role", "node")
    assert result.stdout.splitlines() == ["node-0 | one", "node-0 | three", "node-0 | bar 2"]
    assert f"the log of {NODE_1}, container node, cannot be read" in result.stderr


def test_following_waits_in_a_queue(cluster: Cluster, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_LOOK_SECONDS", 0.05)
    queued = trainjob()
    queued["metadata"]["labels"] = {QUEUE: "team"}
    queued["spec"]["suspend"] = True
    cluster.add("trainjobs", queued)
    found: list[State] = []
    told: list[str] = []
    words = (client, "tune", (), None, lambda line: None, lambda run: told.append(state_of(run)))
    follower = threading.Thread(target=lambda: found.append(logs.follow(*words)))
    follower.start()
    follower.join(0.5)
    assert follower.is_alive()
    cluster.add("trainjobs", trainjob(**ended("Complete", "AllJobsCompleted")))
    follower.join(120)
    assert found == [State.COMPLETE]
    assert "queue" in told[0]


def test_following_ends_with_the_run(trained: Cluster) -> None:
    result = stoker("logs", "tune", "--follow", "--role", "node")
    assert sorted(result.stdout.splitlines()) == [
        "node-0 | bar 2",
        "node-0 | one",
        "node-0 | three",
        "node-1 | three",
        "node-1 | two",
    ]
    assert result.stderr == "[stoker] tune is complete\n"
    trained.add("trainjobs", trainjob(**ended("Failed", "FailedJobs")))
    stoker("logs", "tune", "--follow", code=ExitCode.CRASHED)


def test_following_goes_over_restarts_and_repeats_nothing(
    cluster: Cluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(logs, "_AGAIN_SECONDS", 0.05)
    cluster.add("trainjobs", trainjob())
    cluster.add("jobsets", jobset())
    cluster.add("pods", pod())
    # Stamps of stdout and stderr may go back by a little.
    cluster.logs[NODE_0, "node"] = stamped((1, "a"), (2, "a later"), (1, "a traceback"), (2, "b"))
    shown: list[str] = []
    reached = {text: threading.Event() for text in ("b", "c", "d")}

    def show(line: LogLine) -> None:
        shown.append(line.text)
        reached.get(line.text, threading.Event()).set()

    found: list[State] = []
    told: list[str] = []

    def tell(run: Run) -> None:
        told.append(state_of(run))

    follower = threading.Thread(target=lambda: found.append(logs.follow(client, "tune", (), None, show, tell)))
    follower.start()
    # The log of a container that runs breaks off after each answer of the stand-in, and is asked for anew.
    assert reached["b"].wait(120)
    cluster.logs[NODE_0, "node"] += stamped((2, "c"))
    assert reached["c"].wait(120)
    cluster.objects.pop(("pods", "ml", NODE_0))
    cluster.add("pods", terminated(0, attempt=1))
    cluster.logs["tune-node-0-0-x1k0c", "node"] = stamped((9, "d"))
    assert reached["d"].wait(120)
    cluster.add("trainjobs", trainjob(**ended("Complete", "AllJobsCompleted")))
    follower.join(120)
    assert found == [State.COMPLETE]
    assert shown == ["a", "a later", "a traceback", "b", "c", "d"]
    assert (told[0], told[-1]) == ("tune is running", "tune is complete")


def test_following_a_run_that_prints_steadily_asks_no_more_often(
    cluster: Cluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, enough = 0.5, 300
    monkeypatch.setattr(logs, "_LOOK_SECONDS", seconds)
    cluster.add("trainjobs", trainjob())
    cluster.add("jobsets", jobset())
    cluster.add("pods", pod())
    over = threading.Event()

    def chatty(*words: Any, **more: Any) -> Iterator[bytes]:
        while not over.wait(0.005):
            yield b"2026-11-22T10:00:00Z step"

    def show(line: LogLine) -> None:
        shown.append(line)
        if len(shown) == enough:
            cluster.add("pods", terminated(0))
            cluster.add("trainjobs", trainjob(**ended("Complete", "AllJobsCompleted")))
            over.set()

    shown: list[LogLine] = []
    monkeypatch.setattr(Client, "log", chatty)
    begun = time.monotonic()
    assert logs.follow(client, "tune", (), None, show, lambda run: None) is State.COMPLETE
    assert len(shown) >= enough
    looks = [path for _, path in cluster.requests if path.endswith("/trainjobs/tune")]
    assert len(looks) <= (time.monotonic() - begun) / seconds + 1


def test_a_quiet_log_that_breaks_off_is_not_shown_from_its_start(
    trained: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_AGAIN_SECONDS", 0.01)
    # By the client that asks: a reader that an earlier test has left may ask, too.
    asked: defaultdict[Client, list[int | None]] = defaultdict(list)

    def quiet(client: Client, *words: str, tail: int | None, **more: Any) -> Iterator[bytes]:
        asked[client].append(tail)
        if len(asked[client]) == 1:
            raise UnreachableError("the cluster", "no line for long")
        yield from ()

    monkeypatch.setattr(Client, "log", quiet)
    stoker("logs", "tune", "--follow", "--tail", "0", "--role", "node-0")
    assert [0, 0] in asked.values()


def test_a_log_without_its_past_that_ends_before_a_line_goes_on_from_when_it_was_asked_for(
    cluster: Cluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_AGAIN_SECONDS", 0.01)
    cluster.add("pods", pod())
    asked: list[tuple[int | None, str]] = []

    def silent(asking: Client, *words: str, tail: int | None, since: str, **more: Any) -> Iterator[bytes]:
        if asking is client:  # a reader that an earlier test has left may ask, too
            asked.append((tail, since))
            if len(asked) == 3:
                cluster.objects.pop(("pods", "ml", NODE_0))
        yield from ()

    monkeypatch.setattr(Client, "log", silent)
    before = datetime.now(UTC) - timedelta(seconds=1)
    logs._follow_one(client, LogSource(NODE_0, "node", "node-0"), 0, lambda line: None)
    assert [tail for tail, _ in asked] == [0, None, None, None]
    assert asked[0][1] == ""
    assert {before <= datetime.fromisoformat(since) <= datetime.now(UTC) for _, since in asked[1:]} == {True}


def test_a_token_is_hidden_in_json_too(trained: Cluster) -> None:
    token = "hf_" + "x" * 20
    trained.logs[NODE_0, "node"] = stamped((1, f"sent:\t{token}"))
    shown = stoker("logs", "tune", "--role", "node-0", "--output", "json").stdout
    assert json.loads(shown)["text"] == "sent:\t(not shown)"


def test_following_shows_all_that_a_finished_run_has_written(trained: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_LOOK_SECONDS", 0.1)

    def slow(*words: Any, **more: Any) -> Iterator[bytes]:
        for number in range(100):
            time.sleep(0.01)
            yield f"2026-11-22T10:00:00Z {number}".encode()

    monkeypatch.setattr(Client, "log", slow)
    shown = stoker("logs", "tune", "--follow", "--role", "node-0").stdout
    assert shown.splitlines() == [f"node-0 | {number}" for number in range(100)]


def test_a_sampler_that_writes_on_does_not_keep_a_follower(
    trained: Cluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_LAST_SECONDS", 0.3)
    written = threading.Event()

    def endless(*words: Any, **more: Any) -> Iterator[bytes]:
        yield b"2026-11-22T10:00:00Z while it trained"
        while not written.wait(0.01):
            yield b"2026-11-22T10:30:00Z later"

    monkeypatch.setattr(Client, "log", endless)
    shown: list[str] = []
    words = ("tune", ("sampler-0/vllm",), None, lambda line: shown.append(line.text), lambda run: None)
    try:
        assert logs.follow(client, *words) is State.COMPLETE
    finally:
        written.set()
    assert shown[:2] == ["while it trained", "later"]


def test_a_source_is_each_container() -> None:
    two = pod_of(pod("sampler", spec={"containers": [{"name": "vllm"}, {"name": "proxy"}]}))
    found = sources_of([pod_of(pod()), two])
    assert [source.label for source in found] == ["node-0", "sampler-0/vllm", "sampler-0/proxy"]
    assert [source.label for source in sources_of([pod_of(pod()), two], ["node"])] == ["node-0"]


def test_bytes_that_are_no_text_are_shown() -> None:
    source = LogSource("p", "c", "node-0")
    assert line_of(source, b"2026-11-22T10:00:00Z \xff!").text == "\N{REPLACEMENT CHARACTER}!"
    assert line_of(source, b"").text == ""
    assert line_of(source, b"no time at all").text == "time at all"


@given(st.lists(st.lists(st.integers(0, 59), max_size=6), max_size=4))
def test_merging_keeps_the_order_of_each_log(logs_of: list[list[int]]) -> None:
    sources = [LogSource(str(number), "c", str(number)) for number in range(len(logs_of))]
    given_ = [
        [LogLine(source, f"2026-11-22T10:00:{second:02}Z", f"{place}") for place, second in enumerate(seconds)]
        for source, seconds in zip(sources, logs_of, strict=True)
    ]
    found = list(merged(iter(lines) for lines in given_))
    assert len(found) == sum(map(len, logs_of))
    assert [line.time for line in found] == sorted(line.time for line in found)
    for source, lines in zip(sources, given_, strict=True):
        assert [line.text for line in found if line.source == source] == [line.text for line in lines]
