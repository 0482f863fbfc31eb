"""A call reaches every replica or none, whoever is slow, wrong, gone or new."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from runner.tests.serve.fleet.members import Members

from stoker.serve.adapters.files import adapter_written
from stoker.serve.fleet import control as control_module
from stoker.serve.fleet import desired
from stoker.serve.fleet.control import Call
from stoker.serve.fleet.desired import CallRefusedError
from stoker.serve.fleet.replicas import Lookup


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that cannot is believed at once."""
    monkeypatch.setattr(control_module, "_DOUBT_SECONDS", 0.3)


def load(name: str, path: str) -> Call:
    return Call(f"load {name}", desired.load(name, path, adapter_written(Path(path))))


def unload(name: str) -> Call:
    return Call(f"unload {name}", desired.unload(name), anyway=True)


PAUSE, RESUME = Call("pause", desired.pause), Call("resume", desired.resume, anyway=True)
RESET = Call("drop caches", desired.reset_cache)


def test_replicas_are_not_forgotten_while_the_name_server_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Lookup("127.0.0.1:8000")
    assert look() == {"127.0.0.1:8000"}

    def silent(*words: object, **more: object) -> None:
        raise socket.gaierror(number, "x")

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    number = socket.EAI_AGAIN
    assert look() == {"127.0.0.1:8000"}
    number = socket.EAI_NONAME
    assert look() == frozenset()
    number = socket.EAI_AGAIN
    assert look() == frozenset()


def test_a_call_reaches_every_replica(members: Members) -> None:
    members.start(3)
    control, path = members.control(), members.adapter("a")
    control.change(load("a", path))
    assert [one.vllm.adapters for one in members.all] == [{"a": path}] * 3
    control.change(PAUSE)
    assert [one.vllm.paused for one in members.all] == [True] * 3
    control.change(RESUME)
    control.change(RESET)
    assert [(one.vllm.paused, one.vllm.resets) for one in members.all] == [(False, 1)] * 3
    state = control.change(unload("a"))
    assert [one.vllm.adapters for one in members.all] == [{}] * 3
    assert (state.kept, state.generation) == (True, 10)
    assert all(one["problem"] == "" for one in control.shown()["replicas"].values())


def test_a_replica_that_cannot_is_named_and_the_state_before_is_everywhere(members: Members) -> None:
    good, bad, other = members.start(3)
    control, first, second = members.control(), members.adapter("a"), members.adapter("b")
    control.change(load("a", first))
    bad.vllm.unloadable.add("b")
    with pytest.raises(CallRefusedError, match="not every replica could load b; all keep the state before") as found:
        control.change(load("b", second))
    assert found.value.status == 502
    assert [*found.value.replicas] == [bad.name]
    assert "vLLM refused it: Call to add_lora method failed" in found.value.replicas[bad.name]
    for one in (good, bad, other):
        assert one.vllm.adapters == {"a": first}
        assert one.watch.look().ready
    assert members.log.newest()[0].adapters == {"a": first}


def test_a_pause_that_fails_somewhere_pauses_nobody(members: Members) -> None:
    good, bad = members.start(2)
    bad.vllm.stubborn.add("/pause")
    with pytest.raises(CallRefusedError, match="pause") as found:
        members.control().change(PAUSE)
    assert found.value.replicas == {bad.name: "vLLM: it cannot"}
    assert [one.vllm.paused for one in (good, bad)] == [False, False]


def test_a_pause_that_fails_after_caches_were_dropped_pauses_nobody(members: Members) -> None:
    good, bad = members.start(2)
    control = members.control()
    control.change(RESET)
    bad.vllm.stubborn.add("/pause")
    with pytest.raises(CallRefusedError, match="pause; all keep the state before"):
        control.change(PAUSE)
    assert [one.vllm.paused for one in (good, bad)] == [False, False]


def test_a_cache_is_dropped_again_after_a_call_that_was_undone(members: Members) -> None:
    good, bad = members.start(2)
    control = members.control()
    bad.vllm.stubborn.add("/reset_prefix_cache")
    with pytest.raises(CallRefusedError, match="drop caches; all keep the state before"):
        control.change(RESET)
    bad.vllm.stubborn.clear()
    control.change(RESET)
    assert (good.vllm.resets, bad.vllm.resets) == (2, 1)


def test_an_adapter_that_cannot_be_served_is_refused_by_the_check(members: Members) -> None:
    members.start(2)
    folder = members.adapter("a")
    (Path(folder) / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(CallRefusedError, match="not every replica could load a") as found:
        members.control().change(load("a", folder))
    assert len(found.value.replicas) == 2
    assert all("adapter_model.safetensors" in why for why in found.value.replicas.values())
    assert [one.vllm.adapters for one in members.all] == [{}, {}]


def test_a_listed_replica_that_does_not_answer_fails_the_call(members: Members) -> None:
    members.start(2)
    members.listed.add("127.0.0.1:9")
    with pytest.raises(CallRefusedError) as found:
        members.control(1.0).change(PAUSE)
    assert [*found.value.replicas] == ["127.0.0.1:9"]
    assert "it does not answer" in found.value.replicas["127.0.0.1:9"]
    assert [one.vllm.paused for one in members.all] == [False, False]


def test_a_replica_that_goes_meanwhile_is_not_waited_for(members: Members) -> None:
    members.start(2)
    members.listed.add("127.0.0.1:9")
    threading.Timer(0.3, members.listed.discard, ["127.0.0.1:9"]).start()
    members.control().change(PAUSE)
    assert [one.vllm.paused for one in members.all] == [True, True]


def test_one_that_starts_later_has_the_state_before_it_is_ready(members: Members) -> None:
    members.start(1)
    control, path = members.control(), members.adapter("a")
    control.change(load("a", path))
    control.change(PAUSE)
    (late,) = members.start(1, looks=False)
    late.vllm.unloadable.add("a")
    assert not late.watch.look().ready
    control.change(RESUME)  # it is not ready, so nobody waits for it
    late.vllm.unloadable.clear()
    assert late.watch.look_at_once().ready
    assert (late.vllm.adapters, late.vllm.paused) == ({"a": path}, False)


def test_one_that_starts_later_does_not_load_weights_that_have_changed(members: Members) -> None:
    (first,) = members.start(1)
    control, path = members.control(), members.adapter("a")
    control.change(load("a", path))
    os.utime(f"{path}/adapter_model.safetensors", ns=(1, 1))
    (late,) = members.start(1, looks=False)
    assert not late.watch.look().ready
    assert late.vllm.adapters == {}
    problem = control.shown()["replicas"][late.name]["problem"]
    assert f"the weights in {path} have changed since they were loaded: unload a, and load it again" in problem
    first.watch.look()
    assert first.vllm.adapters == {"a": path}
    control.change(unload("a"))
    control.change(load("a", path))
    assert late.watch.look().ready
    assert [one.vllm.adapters for one in members.all] == [{"a": path}] * 2


def test_a_server_that_starts_anew_has_the_state_before_it_is_ready(members: Members) -> None:
    (one,) = members.start(1)
    control, path = members.control(), members.adapter("a")
    control.change(load("a", path))
    control.change(PAUSE)
    one.vllm.down = True
    assert not one.watch.look().ready
    one.vllm.adapters, one.vllm.paused, one.vllm.down = {}, False, False
    one.vllm.invisible.add("a")
    assert not one.watch.look().ready
    one.vllm.invisible.clear()
    assert one.watch.look().ready
    assert (one.vllm.adapters, one.vllm.paused) == ({"a": path}, True)


def test_a_name_that_comes_again_finds_nothing_cached(members: Members) -> None:
    (one,) = members.start(1)
    control = members.control()
    control.change(load("a", members.adapter("first")))
    assert one.vllm.resets == 0
    control.change(unload("a"))
    control.change(load("a", members.adapter("second")))
    assert one.vllm.resets == 1


def test_a_replica_that_was_lost_for_a_moment_drops_what_calls_wanted_dropped(members: Members) -> None:
    (one,) = members.start(1)
    one.vllm.down = True
    assert not one.watch.look().ready
    members.log.append(desired.reset_cache(members.log.newest()[0]).kept_as(1))
    one.vllm.down = False
    assert one.watch.look().ready
    assert one.vllm.resets == 1


def test_a_replica_that_was_lost_for_a_moment_has_nothing_cached_of_a_name_that_came_again(members: Members) -> None:
    (one,) = members.start(1)
    members.control().change(load("a", members.adapter("first")))
    one.vllm.down = True
    assert not one.watch.look().ready
    unloaded = desired.unload("a")(members.log.newest()[0]).kept_as(3)
    members.log.append(unloaded)
    members.log.append(desired.load("a", members.adapter("second"), 0)(unloaded).kept_as(4))
    one.vllm.down = False
    assert one.watch.look().ready
    assert one.vllm.resets == 1


def test_without_a_ready_replica_only_less_may_be_wanted(members: Members) -> None:
    (one,) = members.start(1)
    control = members.control()
    control.change(load("a", members.adapter("a")))
    members.listed.clear()
    one.vllm.down = True
    one.watch.look()
    with pytest.raises(CallRefusedError, match="no replica is ready") as found:
        control.change(PAUSE)
    assert found.value.status == 503
    control.change(unload("a"))
    assert members.log.newest()[0].adapters == {}


def test_a_call_that_asks_for_what_is_there_writes_nothing(members: Members) -> None:
    members.start(2)
    control, path = members.control(), members.adapter("a")
    control.change(load("a", path))
    generation = members.log.newest()[0].generation
    control.change(load("a", path))
    control.change(RESUME)
    assert members.log.newest()[0].generation == generation


def test_calls_to_two_processes_at_once_are_all_done(members: Members) -> None:
    members.start(2)
    controls = [members.control(), members.control()]
    paths = {f"a{number}": members.adapter(f"a{number}") for number in range(12)}
    with ThreadPoolExecutor(6) as threads:
        done = [
            threads.submit(controls[number % 2].change, load(name, path))
            for number, (name, path) in enumerate(paths.items())
        ]
        for one in done:
            one.result(120)
    assert [one.vllm.adapters for one in members.all] == [paths, paths]
    assert members.log.newest()[0].adapters == paths


def test_a_change_whose_author_is_gone_is_taken_back(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_UNDO_SECONDS", "_MARGIN_SECONDS"):
        monkeypatch.setattr(control_module, name, 0.2)
    (one,) = members.start(1)
    members.log.append(desired.pause(members.log.newest()[0]).tried(1))
    assert one.watch.look().held is not None
    assert one.vllm.paused
    control = members.control(0.5)
    with pytest.raises(CallRefusedError, match="another process of the fleet takes too long") as found:
        control.change(RESET)
    assert found.value.status == 503
    threading.Event().wait(0.6)
    control.tell()
    assert (members.log.newest()[0].kept, one.vllm.paused) == (True, False)
    control.change(RESET)


def test_whoever_does_not_know_the_newest_state_is_told(members: Members) -> None:
    (one,) = members.start(1)
    members.log.append(desired.reset_cache(members.log.newest()[0]).tried(1).kept_as(1))
    members.control().tell()
    assert one.vllm.resets == 1


def test_a_state_that_cannot_be_read_changes_nothing(members: Members) -> None:
    (one,) = members.start(1)
    control, path = members.control(), members.adapter("a")
    control.change(load("a", path))
    (members.log.folder / "2/state.json").write_text("{")
    state = one.watch.look()
    assert state.held is not None
    assert "cannot be read" in state.held.problem
    assert (state.ready, one.vllm.adapters) == (True, {"a": path})
    with pytest.raises(CallRefusedError, match="cannot be read") as found:
        control.change(PAUSE)
    assert found.value.status == 500
