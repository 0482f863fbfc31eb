"""Adapters are loaded only while their engine has its turn at the device, and a load under way is waited for."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from runner.tests.serve.adapters.samples import BASE
from runner.tests.serve.adapters.stand_in import Clock, Vllm

from stoker.serve.adapters.files import read_base_model
from stoker.serve.adapters.settings import Settings
from stoker.serve.adapters.versions import publish, retract
from stoker.serve.adapters.watch import Watch
from stoker.serve.slices import guard
from stoker.serve.slices.guard import LOADING, PARKED, PARKING, RUNNING, STARTING, STOP, Permit
from stoker.serve.slices.reloads import Reloads
from stoker.serve.vllm import Server


@pytest.fixture
def slices(tmp_path: Path) -> Path:
    """The folder that is shared with `stoker slice run`."""
    made = tmp_path / "slice"
    made.mkdir()
    return made


@pytest.fixture
def watch(vllm: Vllm, model: Path, folder: Path, clock: Clock, slices: Path) -> Watch:
    settings = Settings(model, "tiny", BASE, folder=folder, max_rank=8)
    return Watch(settings, Server(vllm.address, 5), read_base_model(model, BASE), clock, Reloads(slices))


def permit(slices: Path, state: str, seconds: float = 60.0) -> None:
    guard.write(guard.permit_path(slices), Permit(state, guard.now() + seconds))


def test_a_version_that_comes_while_others_have_the_device_waits_for_its_turn(
    watch: Watch, vllm: Vllm, output: Path, folder: Path, slices: Path
) -> None:
    permit(slices, RUNNING)
    publish(output, folder, "a")
    assert watch.look().ready
    permit(slices, PARKED)
    publish(output, folder, "a")
    publish(output, folder, "a")
    for state in (watch.look_at_once(["a:3"]), watch.look()):
        assert (state.ready, sorted(state.loaded), dict(state.problems)) == (True, ["a:1"], {})
        assert state.missing == ("a:2", "a:3")
    assert vllm.counted["/v1/load_lora_adapter"] == 1
    assert Reloads(slices).wants_turn(), "an engine without requests gets its turn too"
    permit(slices, RUNNING)
    state = watch.look()
    assert (state.missing, sorted(vllm.adapters)) == ((), ["a:2", "a:3"])
    assert not Reloads(slices).wants_turn()


@pytest.mark.parametrize(
    ("state", "seconds"),
    [(PARKED, 60.0), (STARTING, 60.0), (LOADING, 60.0), (PARKING, 60.0), (STOP, 60.0), (RUNNING, -1.0), (None, 0.0)],
)
def test_nothing_is_loaded_or_measured_but_in_a_turn(
    watch: Watch, vllm: Vllm, output: Path, folder: Path, slices: Path, state: str | None, seconds: float
) -> None:
    publish(output, folder, "a")
    vllm.adapters["b:1"] = str(folder / "b" / "1")
    if state is not None:
        permit(slices, state, seconds)
    assert watch.look().missing == ("a:1",)
    assert list(vllm.adapters) == ["b:1"]
    assert set(vllm.asked) == {"tiny"}


def test_no_turn_is_asked_for_what_is_no_longer_published(
    watch: Watch, output: Path, folder: Path, slices: Path
) -> None:
    permit(slices, PARKED)
    publish(output, folder, "a")
    watch.look()
    assert Reloads(slices).wants_turn()
    retract(folder, "a", 1)
    watch.look()
    assert not Reloads(slices).wants_turn()


def test_who_parks_an_engine_waits_for_a_load_that_is_under_way(slices: Path) -> None:
    permit(slices, RUNNING)
    reloads = Reloads(slices, seconds=0.05)
    with reloads.in_turn() as may:
        assert may
        permit(slices, PARKING)
        assert not Reloads(slices, seconds=0.05).settles(), "an engine whose load never ends is not told to park"
        settled: list[bool] = []
        parking = threading.Thread(target=lambda: settled.append(Reloads(slices, seconds=10).settles()))
        parking.start()
    parking.join()
    assert settled == [True]
    with reloads.in_turn() as may:
        assert not may
        assert reloads.settles()


def test_a_folder_that_cannot_be_written_is_reported(watch: Watch, output: Path, folder: Path, slices: Path) -> None:
    publish(output, folder, "a")
    slices.rmdir()
    state = watch.look()
    assert state.problems == {"a:1": f"{slices}/adapters.new cannot be written: No such file or directory"}
