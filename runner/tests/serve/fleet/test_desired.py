"""What calls make of a fleet's state, and what is said of replicas that are not so far."""

from __future__ import annotations

import random

import pytest

from stoker.serve.fleet import desired
from stoker.serve.fleet.desired import CallRefusedError, Desired, Held, ReplicaStatus, held, lacking


def test_calls_change_what_they_name_and_nothing_else() -> None:
    now = Desired(3, adapters={"a": "/a"}, stamps={"a": 1})
    loaded = desired.load("b", "/b", 2)(now)
    assert (loaded.adapters, loaded.stamps) == ({"a": "/a", "b": "/b"}, {"a": 1, "b": 2})
    assert desired.load("a", "/a", 1)(now).same(now)
    assert desired.unload("b")(loaded).same(now)
    assert desired.pause(now).paused
    assert not desired.resume(desired.pause(now)).paused
    assert desired.reset_cache(now).resets == 4
    assert now == Desired(3, adapters={"a": "/a"}, stamps={"a": 1})


@pytest.mark.parametrize("name", ["", "a:1", "../a", "a/b", "a" * 129, "-a"])
def test_a_name_that_no_adapter_can_have_is_refused(name: str) -> None:
    with pytest.raises(CallRefusedError, match="lora_name") as found:
        desired.load(name, "/a", 1)
    assert found.value.status == 400


def test_a_name_means_one_folder() -> None:
    with pytest.raises(CallRefusedError, match="a is loaded from /a: give other weights another name") as found:
        desired.load("a", "/b", 1)(Desired(adapters={"a": "/a"}))
    assert found.value.status == 400


def test_a_name_means_the_weights_that_were_loaded() -> None:
    now = Desired(adapters={"a": "/a"}, stamps={"a": 1})
    with pytest.raises(CallRefusedError, match="a is loaded, and the weights in /a have changed since: ") as found:
        desired.load("a", "/a", 2)(now)
    assert found.value.status == 400
    assert desired.load("a", "/a", 2)(desired.unload("a")(now)).stamps == {"a": 2}
    older = Desired(adapters={"a": "/a"})
    assert desired.load("a", "/a", 2)(older).same(older), "when they were written is not known"


def test_what_no_call_has_loaded_is_not_unloaded_by_one() -> None:
    with pytest.raises(CallRefusedError, match="published versions are unloaded by `stoker adapters retract`") as found:
        desired.unload("a:1")(Desired())
    assert found.value.status == 404


def test_a_state_is_read_as_it_was_written() -> None:
    state = Desired(7, False, True, 2, {"a": "/a"}, "/w", 9, {"a": 8})
    assert Desired.from_json(state.to_json()) == state
    older = '{"generation": 1, "kept": true, "paused": false, "resets": 0, "adapters": {}}'
    assert Desired.from_json(older) == Desired(1)
    for text in ("", "[]", "{}", '{"generation": 1}', "null", '{"generation": 1, "adapters": []}'):
        with pytest.raises(ValueError, match=r".+"):
            Desired.from_json(text)


def test_a_replica_is_ready_with_what_was_kept() -> None:
    kept, newest = Desired(4, adapters={"a": "/a"}), Desired(5, False, adapters={"a": "/a", "b": "/b"})
    assert held(newest, kept, {"a": "/a"}) == Held(5, 0, True, "it has not loaded b yet")
    assert held(newest, kept, {"a": "/a", "b": "/b"}) == Held(5, 5, True, "")
    assert held(newest, kept, {"b": "/b"}) == Held(5, 0, False, "it has not loaded a yet")
    assert held(newest, kept, {"a": "/other", "b": "/b"}) == Held(5, 0, False, "it has not loaded a yet")


def test_a_replica_has_a_state_only_if_it_has_nothing_else() -> None:
    state = Desired(5)
    assert held(state, state, {"a": "/a"}, ["a"]) == Held(5, 0, True, "it still serves a")
    assert held(state, state, {}, paused=True) == Held(5, 0, False, "it is paused")
    paused = Desired(6, paused=True)
    assert held(paused, paused, {}) == Held(6, 0, False, "it is not paused")
    reset = Desired(7, resets=2)
    assert held(reset, reset, {}, resets=1) == Held(7, 0, False, "its cache is not dropped yet")
    assert held(state, state, {}, problem="vLLM: it cannot") == Held(5, 0, True, "vLLM: it cannot", failed=True)


def test_every_replica_that_may_be_asked_must_have_it() -> None:
    seen: dict[str, ReplicaStatus | str] = {
        "has": ReplicaStatus(True, Held(5, 5, True)),
        "late": ReplicaStatus(True, Held(4, 4, True)),
        "cannot": ReplicaStatus(True, Held(5, 0, True, "rank 64 is too large")),
        "starts": ReplicaStatus(False, Held(5, 0, False, "it has not loaded a yet")),
        "older": ReplicaStatus(True, None),
        "gone": "it does not answer",
        "away": "it does not answer",
    }
    assert lacking(5, seen, {"has", "away", "new"}) == {
        "late": "it does not know of it yet",
        "cannot": "rank 64 is too large",
        "older": "it belongs to no fleet: wait until the rollout of the release has ended",
        "away": "it does not answer",
        "new": "it was not asked yet",
    }


def test_whatever_calls_come_a_replica_with_the_state_after_is_never_said_to_lack_it() -> None:
    chance = random.Random(5)
    state = Desired()
    for generation in range(1, 500):
        name = f"n{chance.randrange(4)}"
        step = chance.choice(
            [
                desired.load(name, f"/{name}", 1),
                desired.unload(name),
                desired.pause,
                desired.resume,
                desired.reset_cache,
            ]
        )
        try:
            tried = step(state).tried(generation)
        except CallRefusedError:
            continue
        left = {*state.adapters} - {*tried.adapters}
        before = held(tried, state, state.adapters, left, paused=state.paused, resets=state.resets)
        assert before.ready, "it has what was kept"
        assert (before.generation == generation) == tried.same(state)
        after = held(tried, state, tried.adapters, paused=tried.paused, resets=tried.resets)
        assert (after.generation, after.problem) == (generation, "")
        state = tried.kept_as(generation) if chance.random() < 0.8 else state
