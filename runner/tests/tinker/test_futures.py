"""Answers that come later."""

from __future__ import annotations

import time
from threading import Thread

import pytest

from stoker.tinker.futures import PROTOBUF, Future, Futures
from stoker.tinker.refusals import RefusedError


def test_a_request_that_is_sent_twice_is_done_once() -> None:
    begun: list[Future] = []
    table = Futures("life")
    first, again = table.open(("m", 1), begun.append), table.open(("m", 1), begun.append)
    other = table.open(("m", 2), begun.append)
    assert first is again
    assert begun == [first, other]
    assert table.open(None, begun.append) is not table.open(None, begun.append)


def test_an_answer_is_waited_for() -> None:
    future = Futures("life").open(None, lambda _: None)
    assert not future.wait(0.0)
    thread = Thread(target=future.wait, args=(30.0,))
    thread.start()
    future.finish(b"message")
    thread.join(120.0)
    assert not thread.is_alive()
    assert (future.body, future.kind) == (b"message", PROTOBUF)


def test_a_request_of_an_earlier_life_is_answered_with_what_to_do() -> None:
    before = Futures("before").open(None, lambda _: None)
    now = Futures("now")
    with pytest.raises(RefusedError, match="create_training_client_from_state_with_optimizer") as caught:
        now.find(before.request_id)
    assert caught.value.status == 404
    assert now.open(None, lambda _: None).request_id == "now-1", "nothing is kept of it"


def test_answers_are_kept_for_a_while() -> None:
    table = Futures("life", seconds=0.0)
    future = table.open("key", lambda _: None)
    assert table.find(future.request_id) is future
    future.finish({})
    while table.open("key", lambda _: None) is future:
        table.open(None, lambda _: None)
    with pytest.raises(RefusedError, match="within an hour"):
        table.find(future.request_id)


def test_a_request_that_is_refused_leaves_nothing() -> None:
    def refuse(_: object) -> None:
        raise RefusedError("no")

    table = Futures("life", most=1)
    for _ in range(3):
        with pytest.raises(RefusedError, match="no"):
            table.open("key", refuse)
    assert table.open("key", lambda _: None).request_id


def test_too_many_requests_are_told_to_come_again() -> None:
    table = Futures("life", most=4)
    opened = [table.open(None, lambda _: None) for _ in range(4)]
    with pytest.raises(RefusedError, match="ask again later") as caught:
        table.open(None, lambda _: None)
    assert caught.value.status == 429
    for future in opened:
        future.finish({})
    assert table.open(None, lambda _: None).request_id not in {future.request_id for future in opened}


def test_requests_hold_only_so_many_bytes() -> None:
    table = Futures("life", most_bytes=100)
    opened = [table.open(None, lambda _: None, 50) for _ in range(2)]
    with pytest.raises(RefusedError, match="ask again later") as caught:
        table.open(None, lambda _: None, 1)
    assert caught.value.status == 429
    opened[0].finish(b"x" * 10)  # what was asked is no longer held
    third = table.open(None, lambda _: None, 40)
    assert table.find(opened[0].request_id) is opened[0]
    # Answers leave before requests are turned away, the oldest first.
    opened[1].finish(b"x" * 40)
    time.sleep(0.01)
    table.open(None, lambda _: None, 20)
    with pytest.raises(RefusedError, match="no longer kept"):
        table.find(opened[0].request_id)
    assert table.find(opened[1].request_id) is opened[1]
    assert table.find(third.request_id) is third
