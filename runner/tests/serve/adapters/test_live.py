"""A run that still trains publishes versions that its servers keep until it retracts them, under names never used."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from runner.tests.samples import check
from runner.tests.serve.adapters.samples import BASE, make_adapter
from runner.tests.serve.adapters.stand_in import Clock, Vllm, start_over

from stoker.contract.exits import ExitCode, RunError
from stoker.serve.adapters import live, versions
from stoker.serve.adapters.files import read_adapter, read_base_model
from stoker.serve.adapters.watch import Watch
from stoker.serve.weights import files

MODEL = {"name_or_path": BASE, "revision": None}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Path], None]:
    """Writes an adapter as PEFT does, without a manifest."""
    made = make_adapter(tmp_path / "peft")
    (made / "stoker.json").unlink()

    def copy(draft: Path) -> None:
        shutil.copytree(made, draft, dirs_exist_ok=True)

    return copy


def test_a_live_version_is_whole_and_says_what_it_is(folder: Path, write: Callable[[Path], None]) -> None:
    name = live.claim(folder, "run", "job-1")
    version = live.publish(folder, name, 7, write, MODEL)
    assert (version.name, version.path) == ("run-a0:7", folder / "run-a0" / "7")
    assert read_adapter(version.path).damage == ()
    manifest = json.loads((version.path / "stoker.json").read_text())
    check(manifest, "manifest-v1")
    assert (manifest["status"], manifest["probe"], manifest["keep"]) == ("live", "none", "all")
    assert all(file.stat().st_mode & 0o060 == 0o060 for file in (version.path, *version.path.iterdir()))


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (lambda folder, write: live.publish(folder, "run-a0", 3, write, MODEL), "3"),
        (lambda folder, write: files.place(folder / "run-a0", 3, None, write), "w3"),
    ],
    ids=["adapter", "weights"],
)
def test_what_was_placed_while_the_volume_went_away_is_found_by_the_next_try(
    folder: Path,
    write: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    place: Callable[[Path, Callable[[Path], None]], Any],
    name: str,
) -> None:
    rename = Path.rename

    def away(*_: object) -> bool:
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    def lost(draft: Path, path: Path) -> None:
        rename(draft, path)
        away()

    with monkeypatch.context() as patches:
        patches.setattr(Path, "rename", lost)
        patches.setattr(Path, "exists", away)
        with pytest.raises(versions.OutageError):
            place(folder, write)
    assert place(folder, write).path == folder / "run-a0" / name
    assert [entry.name for entry in (folder / "run-a0").iterdir()] == [name]


def test_a_live_version_is_not_published_as_a_finished_runs(folder: Path, write: Callable[[Path], None]) -> None:
    version = live.publish(folder, live.claim(folder, "run", "job-1"), 1, write, MODEL)
    with pytest.raises(RunError, match="says the run is 'live', not 'finished'"):
        versions.publish(version.path, folder, "support")


def test_every_live_version_is_served_unprobed_until_it_is_retracted(
    watch: Watch, vllm: Vllm, folder: Path, output: Path, write: Callable[[Path], None]
) -> None:
    name = live.claim(folder, "run", "job-1")
    for number in range(1, 6):
        vllm.without_effect.add(f"{name}:{number}")  # as the first versions of a run are
        live.publish(folder, name, number, write, MODEL)
        versions.publish(output, folder, "a")
    state = watch.look()
    assert sorted(vllm.adapters) == ["a:4", "a:5", *(f"{name}:{number}" for number in range(1, 6))]
    assert (state.problems, sorted(state.effects)) == ({}, ["a:4", "a:5"])
    assert not any(asked.startswith(name) for asked in vllm.asked)
    for number in (1, 2, 4):
        live.retract(folder, name, number)
        live.retract(folder, name, number)
    state = watch.look()
    assert sorted(state.loaded) == ["a:4", "a:5", f"{name}:3", f"{name}:5"]
    assert sorted(state.delays) == sorted(state.loaded), "what is gone is forgotten"
    assert sorted(path.name for path in (folder / name).iterdir()) == [".owner", "3", "5"]
    start_over(watch, vllm)
    assert sorted(watch.look().loaded) == ["a:4", "a:5", f"{name}:3", f"{name}:5"]


def test_a_version_that_cannot_be_listed_yet_is_served_when_it_is_named(
    watch: Watch, vllm: Vllm, folder: Path, write: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a network file system does, which lists an old content for a while."""
    name = live.claim(folder, "run", "job-1")
    monkeypatch.setattr("stoker.serve.adapters.wanted.read_published", lambda _folder: [])
    live.publish(folder, name, 1, write, MODEL)
    assert not watch.look().loaded
    told = [f"{name}:1", f"{name}:9", "../peft:1", "x", f"{name}:0", ":1"]
    assert list(watch.look_at_once(told).loaded) == [f"{name}:1"]
    assert list(watch.look().loaded) == [f"{name}:1"], "it stays, though the list still lacks it"
    live.retract(folder, name, 1)
    assert not watch.look().loaded


def test_a_version_that_was_unreadable_is_checked_again_when_it_is_named(
    watch: Watch, clock: Clock, folder: Path, write: Callable[[Path], None]
) -> None:
    name = live.claim(folder, "run", "job-1")
    weights = live.publish(folder, name, 1, write, MODEL).path / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4])
    assert list(watch.look().problems) == [f"{name}:1"]
    weights.write_bytes(whole)
    assert not watch.look().loaded
    assert list(watch.look_at_once([f"{name}:1"]).loaded) == [f"{name}:1"]


def test_each_attempt_has_a_name_of_its_own_and_removes_what_the_last_one_left(
    folder: Path, write: Callable[[Path], None]
) -> None:
    names = []
    for attempt in range(3):
        names.append(name := live.claim(folder, "run", "job-1"))
        live.publish(folder, name, 1 + attempt, write, MODEL)
        (folder / name / ".draft-half").mkdir()
    assert names == ["run-a0", "run-a1", "run-a2"]
    assert [version.name for version in versions.read_published(folder)] == ["run-a2:3"]
    assert [[path.name for path in (folder / name).iterdir()] for name in names[:2]] == [[".owner"]] * 2
    live.clear(folder, "run-a2")
    assert live.claim(folder, "run", "job-1") == "run-a3", "a name that is empty is taken all the same"


def test_two_jobs_of_one_name_leave_each_other_alone(folder: Path, write: Callable[[Path], None]) -> None:
    one, other = (live.claim(folder, "run", owner) for owner in ("job-1", "job-2"))
    assert one != other
    for name in (one, other):
        live.publish(folder, name, 1, write, MODEL)
    live.claim(folder, "run", "job-1")
    assert [version.name for version in versions.read_published(folder)] == [f"{other}:1"]


def test_attempts_that_begin_at_the_same_time_get_different_names(folder: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda number: live.claim(folder, "run", f"job-{number}"), range(8)))) == 8


def test_a_name_that_servers_do_not_take_is_made_into_one_that_they_do(folder: Path) -> None:
    names = [live.claim(folder, run, "job-1") for run in ("A run", "a-run", "r" * 63, "r" * 62 + "s", "--", "a run")]
    assert len(set(names)) == len(names)
    assert names[1] == "a-run-a0"
    for name in names:
        versions.refuse_words(name, 1)
    assert live.claim(folder, "A run", "job-1").endswith("-a1")


def test_a_write_that_fails_leaves_nothing(folder: Path) -> None:
    name = live.claim(folder, "run", "job-1")

    def full(draft: Path) -> None:
        (draft / "adapter_model.safetensors").write_bytes(b"part")
        raise ValueError("Error while serializing: I/O error: No space left on device (os error 28)")

    for write, code, message in (
        (full, ExitCode.CONFIG, "is full .No space left on device.: enlarge it"),
        (lambda draft: None, ExitCode.CRASHED, "version 1 of run-a0 has no adapter"),
    ):
        with pytest.raises(RunError, match=message) as ending:
            live.publish(folder, name, 1, write, MODEL)
        assert ending.value.code is code
    assert [path.name for path in (folder / name).iterdir()] == [".owner"]


def test_base_models_differ_by_fingerprint_and_not_by_place(model: Path, tmp_path: Path) -> None:
    from runner.tests.serve.adapters.samples import make_model

    from stoker.serve.adapters.fingerprint import difference

    mine = read_base_model(model).fingerprint
    copy, wide, tuned = (tmp_path / name for name in ("copy", "wide", "tuned"))
    shutil.copytree(model, copy)
    make_model(wide, hidden=16)
    shutil.copytree(model, tuned)
    weights = bytearray((tuned / "model.safetensors").read_bytes())
    weights[-200:] = b"\x01" * 200
    (tuned / "model.safetensors").write_bytes(weights)
    others = [read_base_model(folder).fingerprint for folder in (copy, wide, tuned)]
    assert [difference(mine, other) for other in others] == [
        "", "its layers have other names or shapes", "its weights have other values",
    ]  # fmt: skip
    assert difference(mine, "") == difference("", mine) == ""
