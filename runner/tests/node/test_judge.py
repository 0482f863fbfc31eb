"""A node's ending is derived from what its processes left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from stoker.contract.exits import ExitCode
from stoker.node.judge import Evidence, judge
from stoker.rank.folders import RankStatus, Verdict


def ended(rank: int, code: int, message: str = "", primary: bool = True) -> RankStatus:
    return RankStatus(rank, 1, "ended", code, message, primary)


def judged(
    statuses: list[RankStatus],
    returncode: int = 1,
    failures: Sequence[Mapping[str, Any]] = (),
    **more: Any,
) -> Verdict:
    """Return the verdict on a node of two processes."""
    return judge(Evidence(2, statuses, failures, returncode, **more))


def test_all_ranks_finished() -> None:
    assert judged([ended(0, 0), ended(1, 0)], 0).code is ExitCode.FINISHED


def test_a_launcher_that_says_0_over_a_silent_rank_is_not_believed() -> None:
    assert judged([ended(0, 0), RankStatus(1, 1, "training")], 0).code is ExitCode.CRASHED
    assert judged([], 0).code is ExitCode.CRASHED


def test_a_launcher_that_fails_once_all_ranks_have_finished_takes_nothing_back() -> None:
    assert judged([ended(0, 0), ended(1, 0)], -9).code is ExitCode.FINISHED


def test_the_rank_with_the_cause_speaks_for_the_node() -> None:
    statuses = [ended(0, 69, "lost rank 1", primary=False), ended(1, 70, "ValueError: x")]
    assert judged(statuses, 1) == Verdict(ExitCode.CRASHED, "ValueError: x")


def test_a_killed_rank_explains_the_ones_that_only_lost_it() -> None:
    statuses = [ended(0, 69, "lost rank 1", primary=False), RankStatus(1, 1, "training")]
    verdict = judged(statuses, 1, [{"rank": 1, "exitcode": -9, "pid": 7}])
    assert verdict.code is ExitCode.CRASHED
    assert (
        "rank 1 was killed (SIGKILL), probably because it was out of memory: raise the memory limit" in verdict.message
    )


@pytest.mark.parametrize(
    ("exitcode", "text"),
    [
        (-11, "rank 1 died of SIGSEGV"),
        (3, "rank 1 exited with 3"),
        (-6, "rank 1 died of SIGABRT"),
        (-40, "rank 1 died of signal 40"),
    ],
)
def test_a_rank_that_died_without_a_word_is_named(exitcode: int, text: str) -> None:
    verdict = judged([], 1, [{"rank": 1, "exitcode": exitcode, "pid": 7}])
    assert verdict.code is ExitCode.CRASHED
    assert text in verdict.message


def test_ranks_the_launcher_itself_ended_are_no_cause() -> None:
    failures = [{"rank": 0, "exitcode": -15, "pid": 7}, {"rank": 1, "exitcode": -9, "pid": 8}]
    assert "rank 1" in judged([], 1, failures).message


def test_a_rank_that_spoke_is_not_counted_as_killed() -> None:
    statuses = [ended(0, 69, "lost another rank", primary=False)]
    verdict = judged(statuses, 1, [{"rank": 0, "exitcode": 69, "pid": 7}])
    assert verdict.code is ExitCode.UNAVAILABLE


def test_a_launcher_that_found_nobody_is_69() -> None:
    verdict = judged([], 69)
    assert (verdict.code, verdict.primary) == (ExitCode.UNAVAILABLE, False)


def test_a_launcher_that_broke_is_70() -> None:
    assert judged([], 1) == Verdict(ExitCode.CRASHED, "the launcher ended with 1 (see the log)")


def test_a_stop_explains_ranks_that_went_with_it() -> None:
    statuses = [ended(0, 69, "lost another rank", primary=False)]
    assert judged(statuses, -15, stopped=True).code is ExitCode.STOPPED


def test_a_rank_that_was_ended_in_a_stop_may_have_saved_before() -> None:
    verdict = judged([RankStatus(0, 1, "training")], -15, stopped=True)
    assert verdict.code is ExitCode.STOPPED
    assert "the newest complete checkpoint counts" in verdict.message


def test_a_cause_is_told_even_during_a_stop() -> None:
    assert judged([ended(0, 78, "another world")], 1, stopped=True).code is ExitCode.CONFIG


def test_a_node_that_was_ended_because_of_a_peer_reports_the_peers_cause() -> None:
    peer = Verdict(ExitCode.NO_INPUT, "node 1: no such file", primary=False)
    statuses = [ended(0, 69, "lost another rank", primary=False)]
    failures = [{"rank": 1, "exitcode": -9, "pid": 7}]
    assert judged(statuses, -15, failures, peer=peer) == peer


def test_a_cause_of_its_own_is_told_before_a_peers() -> None:
    peer = Verdict(ExitCode.UNAVAILABLE, "node 1: lost another rank", primary=False)
    assert judged([ended(0, 70, "ValueError: x")], 1, peer=peer).message == "ValueError: x"


SHORT = "out of host memory: the kernel killed a process at the container's memory limit of 4.0 GiB"
KILLED = [{"rank": 1, "exitcode": -9, "pid": 7}]


def test_a_kill_at_the_memory_limit_is_named_with_the_limit() -> None:
    verdict = judged([RankStatus(1, 7, "training")], 1, KILLED, shortage=SHORT)
    assert verdict == Verdict(ExitCode.CRASHED, f"{SHORT} (rank 1 died of SIGKILL (see the log))")


def test_a_rank_that_lost_its_helper_to_the_memory_limit_names_that_as_the_cause() -> None:
    verdict = judged(
        [ended(0, 70, "RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed")], shortage=SHORT
    )
    assert verdict.message.startswith(SHORT)
    assert "DataLoader worker" in verdict.message


def test_a_kill_at_the_memory_limit_is_told_before_the_word_of_a_peer_that_only_lost_this_node() -> None:
    statuses = [ended(0, 69, "lost another rank", primary=False)]
    echo = Verdict(ExitCode.UNAVAILABLE, "node 1: lost another rank", primary=False)
    assert judged(statuses, -15, KILLED, peer=echo, shortage=SHORT).message.startswith(SHORT)
    assert judged(statuses, -15, KILLED, peer=echo, shortage="") == echo


def test_a_kill_that_was_not_the_memory_limits_is_not_called_so() -> None:
    verdict = judged([], 1, KILLED, shortage="")
    assert "not at this container's memory limit" in verdict.message
    assert "the node may be out of memory" in verdict.message


def test_a_shortage_of_memory_explains_nothing_but_a_crash() -> None:
    assert judged([ended(0, 78, "another world")], shortage=SHORT).message == "another world"
    assert judged([ended(0, 0), ended(1, 0)], 0, shortage=SHORT).code is ExitCode.FINISHED
