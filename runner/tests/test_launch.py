"""A node's ending is derived from what its processes left, and agreed on with the other nodes."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from runner.tests.samples import plan_of

from stoker import launch, preflight
from stoker.checkpoints import MANIFEST
from stoker.exits import ExitCode, RunError
from stoker.launch import Child, Signals
from stoker.plan import Check, Plan
from stoker.runfolder import LocalFolder, RankStatus, SharedFolder, Verdict


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(launch, "_PEER_WORD_SECONDS", 0.3)
    monkeypatch.setattr(launch, "_KILL_SECONDS", 0.3)
    monkeypatch.setattr(launch, "_SHARED_POLL_SECONDS", 0.05)
    monkeypatch.setattr(launch, "_PEER_FAILURE_SECONDS", 0.2)
    monkeypatch.setattr(preflight, "_SECONDS_BETWEEN_LOOKUPS", 0.02)


@pytest.fixture
def signals() -> Iterator[Signals]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield Signals()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return plan_in(tmp_path)


def plan_in(workspace: Path, *args: str, env: Mapping[str, str] | None = None) -> Plan:
    told = {
        "STOKER_WORKSPACE": str(workspace),
        "STOKER_TERMINATION_LOG": str(workspace / "termination-log"),
        "STOKER_ARG_MODEL_NAME_OR_PATH": "org/model",
        "STOKER_ARG_DATASET_NAME": "org/data",
        "PET_MASTER_ADDR": "127.0.0.1",
        **(env or {}),
    }
    return plan_of(*args, env=told)


def ended(rank: int, code: int, message: str = "", primary: bool = True) -> RankStatus:
    return RankStatus(rank, 1, "ended", code, message, primary)


def judged(
    tmp_path: Path,
    returncode: int,
    statuses: list[RankStatus],
    signals: Signals,
    failures: list[dict[str, Any]] | None = None,
    peer: Verdict | None = None,
) -> Verdict:
    local = LocalFolder(tmp_path)
    for status in statuses:
        local.write_status(status)
    if failures is not None:
        local.failures.write_text(json.dumps(failures))
    two_processes = plan_in(tmp_path, env={"PET_NPROC_PER_NODE": "2"})
    return launch._judge(two_processes, Child(1, returncode), local, signals, peer)


def test_all_ranks_finished(tmp_path: Path, signals: Signals) -> None:
    assert judged(tmp_path, 0, [ended(0, 0), ended(1, 0)], signals).code is ExitCode.FINISHED


def test_a_launcher_that_says_0_over_a_silent_rank_is_not_believed(tmp_path: Path, signals: Signals) -> None:
    assert judged(tmp_path, 0, [ended(0, 0), RankStatus(1, 1, "training")], signals).code is ExitCode.CRASHED
    assert judged(tmp_path / "none", 0, [], signals).code is ExitCode.CRASHED


def test_a_launcher_that_fails_once_all_ranks_have_finished_takes_nothing_back(
    tmp_path: Path, signals: Signals
) -> None:
    assert judged(tmp_path, -9, [ended(0, 0), ended(1, 0)], signals).code is ExitCode.FINISHED


def test_the_rank_with_the_cause_speaks_for_the_node(tmp_path: Path, signals: Signals) -> None:
    statuses = [ended(0, 69, "lost rank 1", primary=False), ended(1, 70, "ValueError: x")]
    assert judged(tmp_path, 1, statuses, signals) == Verdict(ExitCode.CRASHED, "ValueError: x")


def test_a_killed_rank_explains_the_ones_that_only_lost_it(tmp_path: Path, signals: Signals) -> None:
    statuses = [ended(0, 69, "lost rank 1", primary=False), RankStatus(1, 1, "training")]
    verdict = judged(tmp_path, 1, statuses, signals, [{"rank": 1, "exitcode": -9, "pid": 7}])
    assert verdict.code is ExitCode.CRASHED
    assert "rank 1 was killed (SIGKILL), most likely out of memory: raise the memory limit" in verdict.message


@pytest.mark.parametrize(
    ("exitcode", "text"), [(-11, "rank 1 died of SIGSEGV"), (3, "rank 1 exited with 3"), (-6, "rank 1 died of SIGABRT")]
)
def test_a_rank_that_died_without_a_word_is_named(tmp_path: Path, signals: Signals, exitcode: int, text: str) -> None:
    verdict = judged(tmp_path, 1, [], signals, [{"rank": 1, "exitcode": exitcode, "pid": 7}])
    assert verdict.code is ExitCode.CRASHED
    assert text in verdict.message


def test_ranks_the_launcher_itself_ended_are_no_cause(tmp_path: Path, signals: Signals) -> None:
    failures = [{"rank": 0, "exitcode": -15, "pid": 7}, {"rank": 1, "exitcode": -9, "pid": 8}]
    assert "rank 1" in judged(tmp_path, 1, [], signals, failures).message


def test_a_rank_that_spoke_is_not_counted_as_killed(tmp_path: Path, signals: Signals) -> None:
    statuses = [ended(0, 69, "lost another rank", primary=False)]
    verdict = judged(tmp_path, 1, statuses, signals, [{"rank": 0, "exitcode": 69, "pid": 7}])
    assert verdict.code is ExitCode.UNAVAILABLE


def test_a_launcher_that_found_nobody_is_69(tmp_path: Path, signals: Signals) -> None:
    verdict = judged(tmp_path, 69, [], signals)
    assert (verdict.code, verdict.primary) == (ExitCode.UNAVAILABLE, False)


def test_a_launcher_that_broke_is_70(tmp_path: Path, signals: Signals) -> None:
    assert judged(tmp_path, 1, [], signals) == Verdict(ExitCode.CRASHED, "the launcher ended with 1 (see the log)")


def test_a_stop_explains_ranks_that_went_with_it(tmp_path: Path, signals: Signals) -> None:
    signals.stopped_at = 1.0
    statuses = [ended(0, 69, "lost another rank", primary=False)]
    assert judged(tmp_path, -15, statuses, signals).code is ExitCode.STOPPED


def test_a_cause_is_told_even_during_a_stop(tmp_path: Path, signals: Signals) -> None:
    signals.stopped_at = 1.0
    assert judged(tmp_path, 1, [ended(0, 78, "another world")], signals).code is ExitCode.CONFIG


def test_a_node_that_was_ended_because_of_a_peer_reports_the_peers_cause(tmp_path: Path, signals: Signals) -> None:
    peer = Verdict(ExitCode.NO_INPUT, "node 1: no such file", primary=False)
    statuses = [ended(0, 69, "lost another rank", primary=False)]
    failures = [{"rank": 1, "exitcode": -9, "pid": 7}]
    assert judged(tmp_path, -15, statuses, signals, failures, peer) == peer


def test_a_cause_of_its_own_is_told_before_a_peers(tmp_path: Path, signals: Signals) -> None:
    peer = Verdict(ExitCode.UNAVAILABLE, "node 1: lost another rank", primary=False)
    assert judged(tmp_path, 1, [ended(0, 70, "ValueError: x")], signals, peer=peer).message == "ValueError: x"


def test_a_signal_is_remembered(signals: Signals) -> None:
    signals.refuse_if_stopped()
    assert signals.time_left(30) == float("inf")
    os.kill(os.getpid(), signal.SIGTERM)
    first = signals.stopped_at
    os.kill(os.getpid(), signal.SIGTERM)
    assert first is not None
    assert signals.stopped_at == first, "the first counts: the grace period began there"
    assert 20 < signals.time_left(30) <= 25
    with pytest.raises(RunError) as refused:
        signals.refuse_if_stopped()
    assert refused.value.code is ExitCode.STOPPED


def sleeper(seconds: float = 30) -> Child:
    """Return a child of our own that sleeps and dies of SIGTERM."""
    return Child(os.posix_spawn("/bin/sleep", ["sleep", str(seconds)], dict(os.environ), setsid=True))


def test_a_child_that_ignores_the_request_is_killed() -> None:
    program = "trap '' TERM; echo; while :; do /bin/sleep 0.05; done"
    child = Child(os.posix_spawn("/bin/sh", ["sh", "-c", program], dict(os.environ), setsid=True))
    time.sleep(0.1)
    child.end()
    assert child.returncode == -signal.SIGKILL


def test_a_stop_before_training_ends_the_child_at_once(tmp_path: Path, plan: Plan, signals: Signals) -> None:
    signals.stopped_at = time.monotonic()
    child = sleeper()
    local = LocalFolder(tmp_path)
    started = time.monotonic()
    launch._watch(plan, SharedFolder(tmp_path, "r", 0), local, signals, child)
    assert time.monotonic() - started < 5
    assert child.returncode == -signal.SIGTERM
    assert local.stop_flag.exists()


def test_a_stop_in_training_waits_for_the_checkpoint(tmp_path: Path, plan: Plan, signals: Signals) -> None:
    local = LocalFolder(tmp_path)
    local.write_status(RankStatus(0, 1, "training"))
    signals.stopped_at = time.monotonic()
    child = sleeper(0.3)
    launch._watch(plan, SharedFolder(tmp_path, "r", 0), local, signals, child)
    assert child.returncode == 0, "it was left to end by itself"


def test_a_stop_in_training_does_not_outlast_the_grace_period(tmp_path: Path, signals: Signals) -> None:
    plan = plan_in(tmp_path, env={"STOKER_GRACE_PERIOD_SECONDS": "6"})
    local = LocalFolder(tmp_path)
    local.write_status(RankStatus(0, 1, "training"))
    signals.stopped_at = time.monotonic() - 5
    child = sleeper()
    launch._watch(plan, SharedFolder(tmp_path, "r", 0), local, signals, child)
    assert child.returncode == -signal.SIGTERM


def test_a_launcher_that_hangs_after_its_ranks_have_ended_is_ended(
    tmp_path: Path, plan: Plan, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_TEARDOWN_SECONDS", 0.1)
    local = LocalFolder(tmp_path)
    local.write_status(ended(0, 0))
    child = sleeper()
    launch._watch(plan, SharedFolder(tmp_path, "r", 0), local, signals, child)
    assert child.returncode == -signal.SIGTERM


def test_a_failed_peer_ends_this_node_too_and_lends_it_its_ending(tmp_path: Path, plan: Plan, signals: Signals) -> None:
    SharedFolder(tmp_path, "r", 1).publish(Verdict(ExitCode.NO_INPUT, "no such file"))
    child = sleeper()
    peer = launch._watch(plan, SharedFolder(tmp_path, "r", 0), LocalFolder(tmp_path), signals, child)
    assert peer == Verdict(ExitCode.NO_INPUT, "node 1: no such file", primary=False)
    assert child.returncode is not None


LOST = Verdict(ExitCode.UNAVAILABLE, "lost", primary=False)
CAUSE = Verdict(ExitCode.CRASHED, "ValueError: x")


def agreed(tmp_path: Path, plan: Plan, verdict: Verdict, signals: Signals) -> Verdict:
    return launch._agree(plan, SharedFolder(tmp_path, "r", 0), verdict, signals)


def test_a_node_that_only_lost_its_peers_waits_for_one_to_say_why(tmp_path: Path, plan: Plan, signals: Signals) -> None:
    later = threading.Timer(0.1, SharedFolder(tmp_path, "r", 1).publish, [CAUSE])
    later.start()
    verdict = agreed(tmp_path, plan, LOST, signals)
    later.join()
    assert verdict == Verdict(ExitCode.CRASHED, "node 1: ValueError: x", primary=False)


def test_the_node_with_the_cause_waits_until_all_have_heard_it(tmp_path: Path, plan: Plan, signals: Signals) -> None:
    heard: list[Verdict] = []

    def other() -> None:
        folder = SharedFolder(tmp_path, "r", 1)
        heard.extend(folder.verdicts().values())
        folder.publish(LOST)

    later = threading.Timer(0.1, other)
    later.start()
    verdict = agreed(tmp_path, plan, CAUSE, signals)
    later.join()
    assert verdict == CAUSE
    assert heard == [CAUSE]


def test_a_node_that_hears_nothing_keeps_its_own_ending(tmp_path: Path, plan: Plan, signals: Signals) -> None:
    assert agreed(tmp_path, plan, LOST, signals) == LOST


def test_nobody_is_waited_for_when_the_grace_period_is_over(
    tmp_path: Path, plan: Plan, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_PEER_WORD_SECONDS", 20)
    signals.stopped_at = time.monotonic() - plan.grace_seconds
    started = time.monotonic()
    assert agreed(tmp_path, plan, LOST, signals) == LOST
    assert time.monotonic() - started < 5


def run(plan: Plan, signals: Signals) -> tuple[ExitCode, str]:
    """Run a plan that ends before its launch, and return code and termination message."""
    code = launch.run(plan, signals)
    return code, Path(plan.termination_log).read_text()


def test_a_missing_model_is_66_with_the_fix_and_is_recorded(tmp_path: Path, signals: Signals) -> None:
    plan = plan_in(tmp_path, env={"STOKER_ARG_MODEL_NAME_OR_PATH": "/missing"})
    code, message = run(plan, signals)
    assert code is ExitCode.NO_INPUT
    assert "the model /missing does not exist" in message
    assert "spec.initializer.model" in message
    error = json.loads((tmp_path / "output" / "last-error.json").read_text())
    assert (error["code"], error["node_rank"], error["attempt"]) == (66, 0, 0)


def test_a_workspace_that_cannot_be_written_to_is_78_with_the_fix(tmp_path: Path, signals: Signals) -> None:
    (tmp_path / "file").touch()
    plan = plan_in(tmp_path, env={"STOKER_WORKSPACE": str(tmp_path / "file" / "workspace")})
    code, message = run(plan, signals)
    assert code is ExitCode.CONFIG
    assert "cannot be written to" in message
    assert "GID 0 with group write" in message


def test_a_finished_run_is_finished(tmp_path: Path, signals: Signals) -> None:
    plan = plan_in(tmp_path, "--max_steps", "5")
    output = tmp_path / "output"
    output.mkdir()
    done = {"fingerprint": plan.fingerprint, "budget": plan.budget, "steps": 5}
    (output / MANIFEST).write_text(json.dumps(done))
    assert run(plan, signals) == (ExitCode.FINISHED, "this run had finished already, with step 5")
    assert (output / MANIFEST).exists()


def test_a_stop_while_waiting_for_peers_is_75(tmp_path: Path, signals: Signals) -> None:
    plan = plan_in(tmp_path, env={"PET_MASTER_ADDR": "absent-node-0-0.invalid"})
    threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGTERM]).start()
    code, message = run(plan, signals)
    assert code is ExitCode.STOPPED
    assert "nothing was lost" in message


def test_peers_that_never_come_are_69_and_named(
    tmp_path: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"sft-node-0-0.invalid"}

    def lookup(name: str, port: object) -> list[str]:
        if name not in known:
            raise socket.gaierror(name)
        return [name]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    env = {"PET_MASTER_ADDR": "sft-node-0-0.invalid", "STOKER_RENDEZVOUS_TIMEOUT_SECONDS": "1"}
    code, message = run(plan_in(tmp_path, env=env), signals)
    assert code is ExitCode.UNAVAILABLE
    assert "after 1 s these nodes of 2 are missing: 1 (sft-node-0-1.invalid)" in message


def test_a_peer_that_failed_early_is_not_waited_for(tmp_path: Path, signals: Signals) -> None:
    plan = plan_in(tmp_path, env={"PET_MASTER_ADDR": "absent-node-0-0.invalid"})
    SharedFolder(tmp_path, plan.run_id, 1).publish(Verdict(ExitCode.USAGE, "no such flag"))
    code, message = run(plan, signals)
    assert code is ExitCode.USAGE
    assert "node 1: no such flag" in message


def test_the_ending_is_told_to_the_peers(tmp_path: Path, signals: Signals) -> None:
    plan = plan_in(tmp_path, env={"STOKER_ARG_MODEL_NAME_OR_PATH": "/missing"})
    run(plan, signals)
    verdicts = SharedFolder(tmp_path, plan.run_id, 1).verdicts()
    assert verdicts[0].code is ExitCode.NO_INPUT


def test_a_more_telling_ending_of_a_peer_replaces_the_nodes_own_everywhere(tmp_path: Path, signals: Signals) -> None:
    plan = plan_in(tmp_path, env={"STOKER_ARG_MODEL_NAME_OR_PATH": "/missing"})
    other = SharedFolder(tmp_path, plan.run_id, 1)
    later = threading.Timer(0.1, other.publish, [Verdict(ExitCode.CONFIG, "another world")])
    later.start()
    code, message = run(plan, signals)
    later.join()
    assert code is ExitCode.CONFIG
    assert message == "wrong configuration: node 1: another world"


def test_a_model_that_may_not_be_read_is_66_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").touch()
    # Root, which tests may run as, can read everything.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "model.safetensors")
    check = Check("exists", str(model), "model", ExitCode.NO_INPUT, "mount it")
    with pytest.raises(RunError, match=r"/model.safetensors cannot be read by UID .*chmod -R g\+rX") as refused:
        preflight._check_readable(check)
    assert refused.value.code is ExitCode.NO_INPUT
