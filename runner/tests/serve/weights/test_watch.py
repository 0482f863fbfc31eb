"""A replica takes each version of whole weights in place, and keeps what it has if a file is damaged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runner.tests.serve.adapters.stand_in import Clock, Vllm, serving

from stoker.serve.slices.reloads import Reloads
from stoker.serve.vllm import Server
from stoker.serve.weights import files
from stoker.serve.weights.watch import WeightsWatch


class WeightsVllm(Vllm):
    """A server with the methods of `stoker.serve.weights.in_vllm`."""

    def __init__(self) -> None:
        super().__init__()
        self.held = ""
        self.staged = ""
        self.paused = False
        self.problem: dict[str, str] = {}
        self.damaged: set[str] = set()
        self.unloadable_weights = False
        self.did: list[str] = []

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Return the status and the answer to a request."""
        if self.down:
            return 503, {}
        if path in ("/pause?mode=keep", "/resume"):
            self.paused = path != "/resume"
            self.did.append(path[1:].partition("?")[0])
            return 200, {}
        if path == "/collective_rpc":
            return 200, {"results": [getattr(self, body["method"])(**body["kwargs"])]}
        return super().answer(path, body)

    def stoker_held(self) -> dict[str, str]:
        return {"name": self.held}

    def stoker_stage(self, folders: list[str]) -> None:
        self.staged, self.problem = "", {}
        for folder in map(Path, folders):
            if folder.name in self.damaged:
                self.problem = {"file": folder.name, "problem": "it is damaged"}
                return
            self.staged = f"{folder.parent.name}:{folder.name[1:].partition('-')[0]}"
            self.did.append(folder.name)

    def stoker_staged(self) -> dict[str, Any]:
        return {"done": True, "name": self.staged, **self.problem}

    def stoker_swap(self, name: str) -> dict[str, str]:
        assert self.paused
        if name != self.staged:
            return {"name": self.held}
        self.did.append("swap")
        if self.unloadable_weights:
            return {"name": self.held, "problem": "vLLM cannot load it"}
        self.held = self.staged
        return {"name": self.held}


@pytest.fixture
def vllm() -> Iterator[WeightsVllm]:
    with serving(WeightsVllm()) as found:
        yield found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(vllm: WeightsVllm, tmp_path: Path, clock: Clock) -> WeightsWatch:
    return WeightsWatch(tmp_path, "tiny", Server(vllm.address, 5), {"model": "tiny"}, clock)


def place(folder: Path, version: int, earlier: int | None = None, run: str = "run-a0") -> str:
    """Publish a version, and return its name."""
    files.place(folder / run, version, earlier, lambda draft: (draft / files.TENSORS).touch())
    return f"{run}:{version}"


def test_a_version_is_read_while_vllm_writes_and_loaded_while_it_pauses(
    watch: WeightsWatch, vllm: WeightsVllm, tmp_path: Path
) -> None:
    state = watch.look()
    assert (state.ready, dict(state.loaded), state.server["weights"]) == (True, {}, 1)
    vllm.did.clear()
    for name in (place(tmp_path, 0), place(tmp_path, 1, 0)):
        state = watch.look_at_once([name])
    assert [*state.loaded] == ["run-a0:1"]
    assert vllm.did == ["w0", "d1-0", "pause", "swap", "resume"]
    assert watch.look().loaded == state.loaded
    assert vllm.did[-1] == "resume"


def test_a_damaged_difference_leaves_the_weights_as_they_are_until_a_whole_version_comes(
    watch: WeightsWatch, vllm: WeightsVllm, tmp_path: Path, clock: Clock
) -> None:
    watch.look_at_once([place(tmp_path, 0)])
    vllm.damaged = {"d1-0"}
    name = place(tmp_path, 1, 0)
    vllm.did.clear()
    state = watch.look_at_once([name])
    assert [*state.loaded] == ["run-a0:0"]
    assert state.problems == {name: "d1-0: it is damaged"}
    assert state.ready
    assert vllm.did == []
    # It is not read each second, but again after a while: the shared file system may only lag.
    vllm.damaged = set()
    assert [*watch.look().loaded] == ["run-a0:0"]
    clock.now += 6
    assert [*watch.look().loaded] == [name]
    vllm.damaged = {"d2-1"}
    state = watch.look_at_once([place(tmp_path, 2, 1)])
    assert [*state.loaded] == [name]
    # The whole version mends it, though the difference is still there and comes first.
    place(tmp_path, 2)
    state = watch.look_at_once(["run-a0:2"])
    assert ([*state.loaded], state.problems) == (["run-a0:2"], {})


def test_a_replica_that_starts_late_is_ready_when_it_has_the_newest_version(
    watch: WeightsWatch, vllm: WeightsVllm, tmp_path: Path
) -> None:
    for version, earlier in ((0, None), (1, 0), (2, None), (3, 2)):
        place(tmp_path, version, earlier)
    vllm.damaged = {"w2", "d3-2", "d1-0", "w0"}
    assert not watch.look().ready
    vllm.damaged = set()
    vllm.did.clear()
    state = watch.look_at_once(["run-a0:3"])
    assert state.ready
    assert vllm.did == ["w2", "d3-2", "pause", "swap", "resume"]


def test_a_server_that_starts_anew_has_no_version(watch: WeightsWatch, vllm: WeightsVllm, tmp_path: Path) -> None:
    name = place(tmp_path, 4)
    watch.look_at_once([name])
    vllm.down = True
    state = watch.look()
    assert (state.up, state.ready, dict(state.loaded)) == (False, False, {})
    vllm.down, vllm.held = False, ""
    state = watch.look()
    assert state.ready
    assert [*state.loaded] == [name]


def test_a_watcher_that_ended_in_the_middle_does_not_leave_vllm_paused(
    watch: WeightsWatch, vllm: WeightsVllm, tmp_path: Path
) -> None:
    vllm.paused, vllm.held = True, "run-a0:1"
    place(tmp_path, 1)
    assert [*watch.look().loaded] == ["run-a0:1"]
    assert not vllm.paused


def test_a_server_without_the_paths_for_it_is_told_apart(
    watch: WeightsWatch, vllm: WeightsVllm, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = Vllm().answer
    vllm.answer = lambda path, body: (404, {}) if path == "/resume" else plain(path, body)  # type: ignore[method-assign]
    assert not watch.look().up
    assert "it has no path to pause: start it with VLLM_SERVER_DEV_MODE=1" in capsys.readouterr().err


def test_the_next_attempt_is_followed_from_a_whole_version(
    watch: WeightsWatch, vllm: WeightsVllm, tmp_path: Path
) -> None:
    watch.look_at_once([place(tmp_path, 7)])
    files.remove(files.read(tmp_path / "run-a0")[0])
    place(tmp_path, 5, run="run-a1")
    assert [*watch.look().loaded] == ["run-a1:5"]


def test_weights_that_vllm_cannot_load_are_a_problem_of_their_version(
    watch: WeightsWatch, vllm: WeightsVllm, tmp_path: Path
) -> None:
    vllm.unloadable_weights = True
    name = place(tmp_path, 0)
    state = watch.look_at_once([name])
    assert state.problems == {name: "w0: vLLM cannot load it"}
    assert not state.ready
    assert not vllm.paused


@pytest.fixture
def reloads(tmp_path: Path) -> Reloads:
    (tmp_path / "slice").mkdir()
    return Reloads(tmp_path / "slice")


@pytest.fixture
def in_turns(vllm: WeightsVllm, tmp_path: Path, clock: Clock, reloads: Reloads) -> WeightsWatch:
    return WeightsWatch(tmp_path, "tiny", Server(vllm.address, 5), {"model": "tiny"}, clock, reloads)


def load(vllm: WeightsVllm, reloads: Reloads) -> str:
    """Load what was asked for, as `stoker slice run` does, and return its name."""
    name = reloads.asked()
    vllm.paused = True
    reloads.answer(name, [vllm.stoker_swap(name)])
    vllm.paused = False
    return name


def test_where_engines_take_turns_the_watcher_reads_and_asks_and_pauses_nothing(
    in_turns: WeightsWatch, vllm: WeightsVllm, tmp_path: Path, reloads: Reloads
) -> None:
    vllm.paused = True  # somebody else has the device
    name = place(tmp_path, 0)
    for _ in range(2):
        state = in_turns.look_at_once([name])
        assert (state.ready, dict(state.loaded), state.missing) == (False, {}, (name,))
    assert vllm.did == ["w0"], "read once, and neither paused nor let go on"
    assert vllm.paused
    assert load(vllm, reloads) == name
    assert reloads.asked() == ""
    state = in_turns.look()
    assert (state.ready, [*state.loaded]) == (True, [name])
    # What comes while a version waits for its turn takes its place.
    for version in (1, 2):
        in_turns.look_at_once([place(tmp_path, version, version - 1)])
    assert vllm.did == ["w0", "swap", "d1-0", "d1-0", "d2-1"]
    assert load(vllm, reloads) == "run-a0:2"
    assert [*in_turns.look().loaded] == ["run-a0:2"]


def test_nothing_is_asked_for_while_something_newer_is_read(
    in_turns: WeightsWatch, vllm: WeightsVllm, tmp_path: Path, reloads: Reloads
) -> None:
    first = place(tmp_path, 0)
    in_turns.look_at_once([first])
    assert reloads.asked() == first, "it waits for its turn"
    asked, staged = [], vllm.stoker_staged
    slow = iter([True, False, False, True])  # read, and then slowly: what is newer

    def reading() -> dict[str, Any]:
        asked.append(reloads.asked())
        return staged() if next(slow, True) else {"done": False}

    vllm.stoker_staged = reading  # type: ignore[method-assign]
    newest = place(tmp_path, 1)
    in_turns.look_at_once([newest])
    assert asked == [first, "", "", ""]
    assert reloads.asked() == newest


def test_weights_that_are_not_loaded_in_a_turn_are_a_problem_of_their_version(
    in_turns: WeightsWatch, vllm: WeightsVllm, tmp_path: Path, reloads: Reloads, clock: Clock
) -> None:
    name = place(tmp_path, 0)
    in_turns.look_at_once([name])
    vllm.unloadable_weights = True
    load(vllm, reloads)
    vllm.staged = ""
    assert in_turns.look().problems == {name: "w0: vLLM cannot load it"}
    assert reloads.asked() == "", "not again at once"
    clock.now += 6
    vllm.unloadable_weights = False
    in_turns.look()
    load(vllm, reloads)
    assert [*in_turns.look().loaded] == [name]


def test_an_answer_to_an_engine_that_has_ended_says_nothing_of_the_next_one(
    in_turns: WeightsWatch, vllm: WeightsVllm, tmp_path: Path, reloads: Reloads
) -> None:
    name = place(tmp_path, 0)
    in_turns.look_at_once([name])
    load(vllm, reloads)
    vllm.held = vllm.staged = ""
    for _ in range(2):  # the first of them takes the answer
        assert dict(in_turns.look().loaded) == {}
    assert reloads.asked() == name, "read and asked for anew"


def test_a_version_that_is_loaded_while_the_next_one_is_read_makes_no_file_bad(
    in_turns: WeightsWatch, vllm: WeightsVllm, tmp_path: Path, reloads: Reloads
) -> None:
    in_turns.look_at_once([place(tmp_path, 0)])
    load(vllm, reloads)
    in_turns.look_at_once([place(tmp_path, 1, 0)])
    vllm.damaged = {"d1-0"}  # it does not follow on what the engine has by then
    stage = vllm.stoker_stage

    def late(folders: list[str]) -> None:
        vllm.held = "run-a0:1"
        stage(folders)

    vllm.stoker_stage = late  # type: ignore[method-assign]
    state = in_turns.look_at_once([place(tmp_path, 2, 1)])
    assert ([*state.loaded], state.problems) == (["run-a0:1"], {})
    assert vllm.did[-1] == "d2-1"
