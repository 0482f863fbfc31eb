"""Desired states on a shared folder: whole or not there, and each of one author."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stoker.contract.exits import RunError
from stoker.serve.adapters.versions import read_published
from stoker.serve.fleet.desired import Desired
from stoker.serve.fleet.log import Log, TakenError


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "adapters/.fleet-models.chat")


def test_the_first_state_is_that_of_the_start(log: Log) -> None:
    assert log.newest() == (Desired(), Desired())


def test_what_is_tried_comes_after_what_was_kept(log: Log) -> None:
    tried = Desired(1, False, paused=True)
    log.append(tried)
    assert log.newest() == (tried, Desired())
    kept = tried.kept_as(2)
    log.append(kept)
    assert log.newest() == (kept, kept)
    assert read_published(log.folder.parent) == [], "servers of versions do not see it"


def test_one_of_many_writes_a_generation(log: Log) -> None:
    def write(number: int) -> bool:
        try:
            log.append(Desired(1, resets=number))
        except TakenError:
            return False
        return True

    with ThreadPoolExecutor(16) as threads:
        written = [*threads.map(write, range(64))]
    assert written.count(True) == 1
    assert log.newest()[0].resets == written.index(True)


def test_old_states_are_removed_and_half_written_ones_not_read(log: Log) -> None:
    for generation in range(1, 40):
        log.append(Desired(generation))
    (log.folder / ".draft-x").mkdir()
    numbers = sorted(int(entry.name) for entry in log.folder.iterdir() if entry.name.isdecimal())
    assert numbers == [*range(24, 40)]
    assert log.newest()[0].generation == 39


def test_a_state_is_written_though_another_process_removes_the_old_ones(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(entry: Path) -> None:
        raise FileNotFoundError(entry)

    for generation in range(1, 17):
        log.append(Desired(generation))
    monkeypatch.setattr("stoker.serve.fleet.log.remove", gone)
    log.append(Desired(17))
    assert log.newest()[0].generation == 17


def test_a_state_that_is_told_is_found_where_the_listing_is_old(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.append(Desired(1))
    listed = [*log.folder.iterdir()]
    log.append(Desired(2, paused=True))
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(listed))
    assert [log.newest(told)[0].generation for told in (0, 1, 2, 3)] == [1, 1, 2, 1]


def test_a_state_that_is_damaged_is_no_other_state(log: Log) -> None:
    log.append(Desired(1))
    (log.folder / "1/state.json").write_text("{}")
    with pytest.raises(ValueError, match="it is not the state of a fleet"):
        log.newest()


def test_a_folder_that_cannot_be_written_to_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be read or written"):
        Log(tmp_path / "file/.fleet").append(Desired(1))
