"""The nodes of a run tell each other how they ended, and the most telling ending is the run's."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from stoker.contract.exits import PRECEDENCE, ExitCode
from stoker.rank.folders import LocalFolder, RankStatus, SharedFolder, Verdict, local_folder, most_telling


@pytest.mark.parametrize(
    ("codes", "winner"),
    [
        ([ExitCode.CRASHED, ExitCode.CONFIG], ExitCode.CONFIG),
        ([ExitCode.UNAVAILABLE, ExitCode.CRASHED], ExitCode.CRASHED),
        ([ExitCode.CRASHED, ExitCode.STOPPED], ExitCode.STOPPED),
        ([ExitCode.NO_INPUT, ExitCode.STOPPED], ExitCode.NO_INPUT),
        ([ExitCode.FINISHED, ExitCode.UNAVAILABLE], ExitCode.UNAVAILABLE),
        ([ExitCode.BAD_DATA, ExitCode.CRASHED, ExitCode.UNAVAILABLE], ExitCode.BAD_DATA),
    ],
)
def test_the_most_telling_ending_wins(codes: list[ExitCode], winner: ExitCode) -> None:
    assert most_telling([Verdict(code, "") for code in codes]).code is winner
    assert most_telling([Verdict(code, "") for code in reversed(codes)]).code is winner


def test_of_equal_endings_the_one_with_the_cause_wins() -> None:
    echo, cause = Verdict(ExitCode.CRASHED, "echo", primary=False), Verdict(ExitCode.CRASHED, "cause")
    assert most_telling([echo, cause]) is cause


def test_every_code_has_a_rank_and_final_ones_come_first() -> None:
    assert sorted(PRECEDENCE) == sorted(ExitCode)
    finals = [code.is_final for code in PRECEDENCE]
    assert finals == sorted(finals, reverse=True)


def test_a_node_sees_the_others_verdicts_but_not_its_own(tmp_path: Path) -> None:
    first, second = (SharedFolder(tmp_path, "run", rank) for rank in (0, 1))
    verdict = Verdict(ExitCode.CRASHED, "loss is nan", primary=False)
    first.publish(verdict)
    assert second.verdicts() == {0: verdict}
    assert first.verdicts() == {}


def test_a_run_that_is_resumed_does_not_see_how_it_was_stopped(tmp_path: Path) -> None:
    before = SharedFolder(tmp_path, "run", 1)
    before.publish(Verdict(ExitCode.STOPPED, "stopped at step 3"))
    SharedFolder(tmp_path, "run", 2).publish(Verdict(ExitCode.CRASHED, "loss is nan"))
    resumed = SharedFolder(tmp_path, "run", 0)
    resumed.forget_stops()
    assert resumed.verdicts() == {2: Verdict(ExitCode.CRASHED, "loss is nan")}
    (before.path / "node-1.json").unlink()  # so that the time is another one on any filesystem
    again = Verdict(ExitCode.STOPPED, "stopped at step 5")
    before.publish(again)
    os.utime(before.path / "node-1.json")
    assert resumed.verdicts()[1] == again


def test_another_attempts_verdicts_are_not_seen(tmp_path: Path) -> None:
    SharedFolder(tmp_path, "before", 0).publish(Verdict(ExitCode.CRASHED, ""))
    assert SharedFolder(tmp_path, "now", 1).verdicts() == {}


def test_drafts_of_files_are_not_read(tmp_path: Path) -> None:
    folder = SharedFolder(tmp_path, "run", 0)
    folder.path.mkdir(parents=True)
    (folder.path / ".node-1.json.host.1").write_text("{")
    (folder.path / "node-2.json").write_text("{")
    assert folder.verdicts() == {}


def test_what_attempts_of_long_ago_left_is_removed(tmp_path: Path) -> None:
    now = time.time()
    for name, days in (("this", 30), ("another job's", 6), ("old", 8)):
        folder = tmp_path / ".stoker" / "runs" / name
        folder.mkdir(parents=True)
        os.utime(folder, (now - days * 86400, now - days * 86400))
    SharedFolder(tmp_path, "this", 0).forget_older_runs()
    assert sorted(path.name for path in (tmp_path / ".stoker" / "runs").iterdir()) == ["another job's", "this"]


def test_statuses_come_back_by_rank(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    written = [RankStatus(rank, 100 + rank, "training") for rank in (10, 9)]
    for status in written:
        folder.write_status(status)
    assert folder.statuses() == written[::-1]


def test_the_pods_own_folder_is_removed() -> None:
    with local_folder() as folder:
        folder.stop_flag.touch()
    assert not folder.path.exists()
