"""Whole weights reach every replica of a fleet or none, and only those of the same model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from runner.tests.serve.adapters.samples import make_model
from runner.tests.serve.fleet.members import Members, members_in, wait_for

from stoker.serve.adapters.files import read_base_model
from stoker.serve.fleet import control as control_module
from stoker.serve.fleet import desired, replicas
from stoker.serve.fleet.control import Call, Control
from stoker.serve.fleet.desired import CallRefusedError, Desired, Held
from stoker.serve.fleet.endpoints import calls
from stoker.serve.fleet.weights import ReplicaWeights, written


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Members]:
    """A fleet of two replicas that takes whole weights."""
    monkeypatch.setattr(control_module, "_DOUBT_SECONDS", 0.3)
    with members_in(tmp_path, rank=None) as found:
        found.start(2)
        yield found


def reload(control: Control, folder: Path | str) -> Desired:
    """Have the weights of a folder loaded."""
    path = str(folder)
    return control.change(Call("load weights", desired.reload(path, written(Path(path)) if path else 0)))


def served(members: Members) -> list[str]:
    return [one.vllm.weights for one in members.all]


def test_every_replica_loads_them_while_it_is_paused(whole: Members, tmp_path: Path) -> None:
    control, first, second = whole.control(), make_model(tmp_path / "v1"), make_model(tmp_path / "v2")
    assert reload(control, first).weights == str(first)
    assert served(whole) == [str(first)] * 2
    reload(control, first)  # who asks again gets the same answer, and nothing happens
    reload(control, second)
    assert control.shown()["weights"] == str(second)
    reload(control, "")
    assert served(whole) == ["", ""]
    assert [(one.vllm.swaps, one.vllm.paused) for one in whole.all] == [([True] * 3, False)] * 2


def test_a_fleet_that_is_paused_stays_so(whole: Members, tmp_path: Path) -> None:
    control = whole.control()
    control.change(Call("pause", desired.pause))
    reload(control, make_model(tmp_path / "v1"))
    assert [one.vllm.paused for one in whole.all] == [True, True]
    assert [one.vllm.counted["/resume"] for one in whole.all] == [0, 0]


def test_what_one_cannot_load_is_loaded_by_none(whole: Members, tmp_path: Path) -> None:
    control, good, bad = whole.control(), make_model(tmp_path / "good"), make_model(tmp_path / "bad")
    reload(control, good)
    whole.all[1].vllm.unreadable.add(str(bad))
    with pytest.raises(CallRefusedError, match="all keep the state before") as found:
        reload(control, bad)
    assert found.value.replicas == {whole.all[1].name: f"{bad}: it is cut"}
    assert served(whole) == [str(good)] * 2


def test_workers_that_do_not_agree_have_what_no_fleet_wants(tmp_path: Path) -> None:
    """One of two could not swap, and went back to the model's own weights: the fleet may want these again."""
    model = make_model(tmp_path / "v1")
    answers = {
        "stoker_stage_model": [{}, {}],
        "stoker_staged": [{"done": True}] * 2,
        "stoker_swap": [{"name": str(model)}, {"name": "", "problem": "out of memory"}],
    }
    server: Any = SimpleNamespace(workers=lambda method, **_: answers[method], pause=lambda: None, resume=lambda: None)
    weights = ReplicaWeights(server, read_base_model(model))
    assert "out of memory" in weights.take(
        Desired(1, False, weights=str(model), written=written(model)), lambda _: True
    )
    assert weights.held not in ("", str(model))


def test_one_that_goes_back_to_the_weights_before_is_not_ready_meanwhile(
    whole: Members, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "_SECONDS", 0.5)
    (good, bad), path = whole.all, str(make_model(tmp_path / "v1"))
    bad.vllm.unreadable.add(path)
    bad.vllm.reading.add(path)
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(reload, whole.control(), path)
        wait_for(lambda: good.watch.state.held == Held(1, 1, ready=True))
        good.vllm.reading.add("")  # the model's own weights, to which it goes back
        bad.vllm.reading.clear()
        with pytest.raises(CallRefusedError, match=f"; still rolling back, or not answering: .*{good.name}"):
            call.result(120)
    assert (good.vllm.weights, good.watch.state.ready) == (path, False)
    shown = whole.control().shown()["replicas"][good.name]
    why = f"it still has the weights in {path}, which are no longer wanted"
    assert shown == {"listed": True, "ready": False, "generation": 0, "problem": why}
    good.vllm.reading.clear()
    wait_for(lambda: good.watch.state.ready)
    assert served(whole) == ["", ""]


def test_what_is_taken_back_while_one_reads_it_is_not_loaded(
    whole: Members, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "_SECONDS", 0.5)
    (slow, bad), path = whole.all, str(make_model(tmp_path / "v1"))
    bad.vllm.unreadable.add(path)
    slow.vllm.reading.add(path)
    with pytest.raises(CallRefusedError, match=f"; still rolling back, or not answering: .*{slow.name}"):
        reload(whole.control(), path)
    assert slow.watch.state.ready, "it has the weights before"
    slow.vllm.reading.clear()
    wait_for(lambda: slow.watch.state.held == Held(2, 2, ready=True))
    assert (slow.vllm.swaps, served(whole)) == ([], ["", ""])


def test_another_model_is_refused_before_anything_is_read(whole: Members, tmp_path: Path) -> None:
    with pytest.raises(CallRefusedError) as found:
        reload(whole.control(), make_model(tmp_path / "large", hidden=16))
    why = "is another than acme/tiny: see model.layers.0.self_attn.q_proj.weight"
    assert [reason.endswith(why) for reason in found.value.replicas.values()] == [True, True]
    assert served(whole) == ["", ""]
    assert [one.vllm.counted["/pause"] for one in whole.all] == [0, 0]


def test_one_that_comes_late_or_starts_again_has_them_before_it_is_ready(whole: Members, tmp_path: Path) -> None:
    control, folder = whole.control(), make_model(tmp_path / "v1")
    reload(control, folder)
    (late,) = whole.start()
    assert late.vllm.weights == str(folder)
    late.vllm.down = True
    assert not late.watch.look().ready
    late.vllm.down, late.vllm.weights = False, ""
    assert late.watch.look().ready
    assert late.vllm.weights == str(folder)


def test_a_watcher_that_starts_again_asks_what_there_is(whole: Members, tmp_path: Path) -> None:
    reload(whole.control(), make_model(tmp_path / "v1"))
    one = whole.all[0]
    one.vllm.down = True
    one.watch.look()
    one.vllm.down = False
    one.watch.look()
    assert one.vllm.swaps == [True]


def test_a_folder_that_changes_is_not_a_new_version(whole: Members, tmp_path: Path) -> None:
    control, folder = whole.control(), make_model(tmp_path / "v1")
    reload(control, folder)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    with pytest.raises(
        CallRefusedError, match="have changed since they were loaded: write each version to its own folder"
    ):
        reload(control, folder)
    (late,) = whole.start()
    assert "have changed since they were named" in control.shown()["replicas"][late.name]["problem"]
    assert not late.watch.look().ready
    assert late.vllm.weights == ""


def test_the_call_is_the_one_that_vllm_has(whole: Members, tmp_path: Path) -> None:
    folder = str(make_model(tmp_path / "v1"))
    make = calls(lambda _: True)["/collective_rpc"]
    call, answer = make({"method": "reload_weights", "kwargs": {"weights_path": folder}}, {})
    assert answer == {"results": [None]}
    assert whole.control().change(call).weights == folder
    call, _ = make({"method": "reload_weights"}, {})
    assert whole.control().change(call).weights == ""


def test_a_fleet_of_adapters_refuses_them(members: Members, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "_DOUBT_SECONDS", 0.3)
    members.start()
    with pytest.raises(CallRefusedError) as found:
        reload(members.control(), make_model(tmp_path / "v1"))
    assert [*found.value.replicas.values()] == [
        "it serves adapters, and vLLM cannot load whole weights beside them: leave lora.maxRank and adapters out"
    ]


def test_a_fleet_of_weights_refuses_adapters(whole: Members) -> None:
    with pytest.raises(CallRefusedError) as found:
        whole.control().change(Call("load a", desired.load("a", whole.adapter("a"), 0)))
    assert all("raise lora.maxRank" in why for why in found.value.replicas.values())
    assert [one.vllm.adapters for one in whole.all] == [{}, {}]
