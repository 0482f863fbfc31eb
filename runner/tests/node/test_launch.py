"""A node's ending is derived from what its processes left, and agreed on with the other nodes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from runner.tests.samples import plan_of

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.manifest import MANIFEST
from stoker.node import launch, preflight
from stoker.node.launch import Child
from stoker.node.report import write_last_error
from stoker.node.signals import Signals
from stoker.plan.plan import Plan
from stoker.rank.folders import LocalFolder, RankStatus, SharedFolder, Verdict
from stoker.rank.pulse import TRAINING, Beat, Pulse, read_beats


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(launch, "_PEER_WORD_SECONDS", 0.3)
    monkeypatch.setattr(launch, "KILL_SECONDS", 0.3)
    monkeypatch.setattr(launch, "_SHARED_POLL_SECONDS", 0.05)
    monkeypatch.setattr(launch, "_PEER_FAILURE_SECONDS", 0.2)
    monkeypatch.setattr(preflight, "_SECONDS_BETWEEN_LOOKUPS", 0.02)


@pytest.fixture
def signals(own_signals: None) -> Signals:
    return Signals()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """This Python has every package of the trainer."""
    monkeypatch.setattr(preflight, "_is_installed", lambda name: True)


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


def wait_for(what: Callable[[], object]) -> None:
    """Wait until something is true of a process."""
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def sleeper(seconds: float = 600) -> Child:
    """Return a child of our own that sleeps and dies of SIGTERM."""
    return Child(os.posix_spawn("/bin/sleep", ["sleep", str(seconds)], dict(os.environ), setsid=True))


def test_a_child_that_ignores_the_request_is_killed() -> None:
    program = "trap '' TERM; echo; while :; do /bin/sleep 0.05; done"
    child = Child(os.posix_spawn("/bin/sh", ["sh", "-c", program], dict(os.environ), setsid=True))
    wait_for(lambda: int(_status(child.pid)["SigIgn"], 16) >> (signal.SIGTERM - 1) & 1)
    child.end()
    assert child.returncode == -signal.SIGKILL


def test_orphans_that_this_process_inherits_are_reaped() -> None:
    # Not the launcher, but a child all the same, as an orphan is to the first process of a container.
    other, child = sleeper(0.05), sleeper()
    wait_for(lambda: _status(other.pid)["State"].startswith("Z"))
    child.reap()
    assert not Path(f"/proc/{other.pid}").exists()
    assert child.returncode is None
    child.end()


def test_a_stop_before_training_ends_the_child_at_once(tmp_path: Path, plan: Plan, signals: Signals) -> None:
    signals.stopped_at = time.monotonic()
    child = sleeper()
    local = LocalFolder(tmp_path)
    started = time.monotonic()
    launch._watch(plan, SharedFolder(tmp_path, "r", 0), local, signals, child)
    assert time.monotonic() - started < 300
    assert child.returncode == -signal.SIGTERM
    assert local.stop_flag.exists()


def test_a_stop_in_training_waits_for_the_checkpoint(
    tmp_path: Path, plan: Plan, signals: Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    local = LocalFolder(tmp_path)
    local.write_status(RankStatus(0, 1, "training"))
    signals.stopped_at = time.monotonic()
    child = sleeper(0.3)
    launch._watch(plan, SharedFolder(tmp_path, "r", 0), local, signals, child)
    assert child.returncode == 0, "it was left to end by itself"
    assert "asked to stop: saving a checkpoint" in capfd.readouterr().err


def test_a_stop_leaves_a_launcher_whose_ranks_have_ended_to_end_by_itself(
    tmp_path: Path, plan: Plan, signals: Signals
) -> None:
    local = LocalFolder(tmp_path)
    local.write_status(ended(0, 75))
    signals.stopped_at = time.monotonic()
    child = sleeper(0.3)
    launch._watch(plan, SharedFolder(tmp_path, "r", 0), local, signals, child)
    assert child.returncode == 0


def test_a_stop_in_training_does_not_outlast_the_grace_period(
    tmp_path: Path, signals: Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = plan_in(tmp_path, env={"STOKER_GRACE_PERIOD_SECONDS": "6"})
    local = LocalFolder(tmp_path)
    local.write_status(RankStatus(0, 1, "training"))
    signals.stopped_at = time.monotonic() - 5
    child = sleeper()
    launch._watch(plan, SharedFolder(tmp_path, "r", 0), local, signals, child)
    assert child.returncode == -signal.SIGTERM
    assert "asked to stop: no time to save a checkpoint" in capfd.readouterr().err


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


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a peer that speaks in any case, however busy the machine is."""
    monkeypatch.setattr(launch, "_PEER_WORD_SECONDS", 60)


@pytest.mark.usefixtures("patience")
def test_a_node_that_only_lost_its_peers_waits_for_one_to_say_why(tmp_path: Path, plan: Plan, signals: Signals) -> None:
    later = threading.Timer(0.1, SharedFolder(tmp_path, "r", 1).publish, [CAUSE])
    later.start()
    verdict = agreed(tmp_path, plan, LOST, signals)
    later.join()
    assert verdict == Verdict(ExitCode.CRASHED, "node 1: ValueError: x", primary=False)


def test_a_cause_is_heard_that_comes_while_this_node_tells_its_own_ending(
    tmp_path: Path, plan: Plan, signals: Signals
) -> None:
    class Meanwhile(SharedFolder):
        def publish(self, verdict: Verdict) -> None:
            super().publish(verdict)
            SharedFolder(tmp_path, "r", 1).publish(CAUSE)

    verdict = launch._agree(plan, Meanwhile(tmp_path, "r", 0), LOST, signals)
    assert verdict == Verdict(ExitCode.CRASHED, "node 1: ValueError: x", primary=False)


@pytest.mark.usefixtures("patience")
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
    monkeypatch.setattr(launch, "_PEER_WORD_SECONDS", 600)
    signals.stopped_at = time.monotonic() - plan.grace_seconds
    started = time.monotonic()
    assert agreed(tmp_path, plan, LOST, signals) == LOST
    assert time.monotonic() - started < 300


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


def test_a_path_that_cannot_be_looked_at_is_66_too(tmp_path: Path, signals: Signals) -> None:
    plan = plan_in(tmp_path, env={"STOKER_ARG_MODEL_NAME_OR_PATH": f"/{'a' * 300}"})
    code, message = run(plan, signals)
    assert code is ExitCode.NO_INPUT
    assert "cannot be reached (File name too long): put it there" in message


def test_a_workspace_that_cannot_be_written_to_is_78_with_the_fix(tmp_path: Path, signals: Signals) -> None:
    (tmp_path / "file").touch()
    plan = plan_in(tmp_path, env={"STOKER_WORKSPACE": str(tmp_path / "file" / "workspace")})
    code, message = run(plan, signals)
    assert code is ExitCode.CONFIG
    assert "cannot be written to" in message
    assert "make the volume's folder writable for GID 0" in message


def test_a_python_without_the_trainer_is_78_and_not_tried_again(tmp_path: Path, signals: Signals) -> None:
    code, message = run(plan_in(tmp_path, env={"PET_NNODES": "1"}), signals)
    assert code is ExitCode.CONFIG
    assert f"{sys.executable} lacks torch, transformers, trl" in message
    assert "--python trl=PATH" in message


def test_no_peer_is_waited_for_where_the_trainer_is_missing(tmp_path: Path, signals: Signals) -> None:
    env = {"PET_MASTER_ADDR": "absent-node-0-0.invalid", "STOKER_RENDEZVOUS_TIMEOUT_SECONDS": "1"}
    code, message = run(plan_in(tmp_path, env=env), signals)
    assert code is ExitCode.CONFIG
    assert "lacks torch" in message


def test_a_run_that_must_resume_ends_with_78_before_its_trainers_start(tmp_path: Path, signals: Signals) -> None:
    required = {"STOKER_RESUME": "require", "PET_NNODES": "1"}
    code, message = run(plan_in(tmp_path, env=required), signals)
    assert (code, "has no complete checkpoint" in message) == (ExitCode.CONFIG, True)

    (tmp_path / "output" / "checkpoint-5").mkdir()
    code, message = run(plan_in(tmp_path, env=required), signals)
    assert "has no complete checkpoint" in message, "it was never sealed"

    plan = plan_in(tmp_path, "--max_steps", "5", env=required)
    done = {"fingerprint": plan.fingerprint, "budget": plan.budget, "steps": 5, "settings": plan.recorded_settings}
    (tmp_path / "output" / MANIFEST).write_text(json.dumps(done))
    assert run(plan, signals)[0] is ExitCode.FINISHED


def test_a_finished_run_is_finished(tmp_path: Path, signals: Signals) -> None:
    plan = plan_in(tmp_path, "--max_steps", "5")
    output = tmp_path / "output"
    output.mkdir()
    done = {"fingerprint": plan.fingerprint, "budget": plan.budget, "steps": 5, "settings": plan.recorded_settings}
    (output / MANIFEST).write_text(json.dumps(done))
    assert run(plan, signals) == (ExitCode.FINISHED, "this run has already finished, at step 5")
    assert (output / MANIFEST).exists()

    # An older runner's manifest does not say more. Nobody is to think that it was trained with the new values.
    args = ("--max_steps", "5", "--learning_rate", "1e-3", "--hub_token", "hf_secret")
    code, message = run(plan_in(tmp_path, *args), signals)
    assert code is ExitCode.FINISHED
    assert message.startswith("this run has already finished, at step 5; nothing was trained, although ")
    assert "learning_rate was None, now 1e-3" in message
    assert "hf_secret" not in message
    assert "STOKER_RESUME=never" in message

    (output / MANIFEST).write_text(json.dumps({**done, **plan.record}))
    code, message = run(plan_in(tmp_path, *args), signals)
    assert code is ExitCode.CONFIG
    assert (
        f"the finished output in {output} belongs to another run: learning_rate was 2e-05, now 0.001 (args)" in message
    )


@pytest.mark.usefixtures("installed")
def test_a_stop_while_waiting_for_peers_is_75(tmp_path: Path, signals: Signals) -> None:
    plan = plan_in(tmp_path, env={"PET_MASTER_ADDR": "absent-node-0-0.invalid"})
    threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGTERM]).start()
    code, message = run(plan, signals)
    assert code is ExitCode.STOPPED
    assert "nothing was lost" in message


@pytest.mark.usefixtures("installed")
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
    assert "after 1 s, these nodes of 2 are missing: 1 (sft-node-0-1.invalid)" in message


@pytest.mark.usefixtures("installed")
def test_a_finished_output_stays_until_the_nodes_have_met(
    tmp_path: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lookup(name: str, port: object) -> list[str]:
        raise socket.gaierror(name)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    env = {"PET_MASTER_ADDR": "sft-node-0-0.invalid", "STOKER_RENDEZVOUS_TIMEOUT_SECONDS": "1"}
    plan = plan_in(tmp_path, "--max_steps", "9", env=env)
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / MANIFEST).write_text(json.dumps({**plan.record, "budget": {"steps": 5}, "steps": 5}))
    assert run(plan, signals)[0] is ExitCode.UNAVAILABLE
    assert (tmp_path / "output" / MANIFEST).exists(), "a node that starts late plans by it too"


@pytest.mark.usefixtures("installed")
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


@pytest.mark.usefixtures("patience")
def test_a_more_telling_ending_of_a_peer_replaces_the_nodes_own_everywhere(tmp_path: Path, signals: Signals) -> None:
    plan = plan_in(tmp_path, env={"STOKER_ARG_MODEL_NAME_OR_PATH": "/missing"})
    other = SharedFolder(tmp_path, plan.run_id, 1)
    later = threading.Timer(0.1, other.publish, [Verdict(ExitCode.CONFIG, "another world")])
    later.start()
    code, message = run(plan, signals)
    later.join()
    assert code is ExitCode.CONFIG
    assert message == "wrong configuration: node 1: another world"


def test_of_two_nodes_with_a_cause_the_one_whose_ending_counts_has_the_last_word(
    tmp_path: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_in(tmp_path, env={"STOKER_ARG_MODEL_NAME_OR_PATH": "/missing"})
    other = plan_in(tmp_path, env={"PET_NODE_RANK": "1"})
    agree = launch._agree

    def meanwhile(*args: Any) -> Verdict:
        write_last_error(other, Verdict(ExitCode.STOPPED, "stopped"))
        return agree(*args)

    monkeypatch.setattr(launch, "_agree", meanwhile)
    run(plan, signals)
    error = json.loads((tmp_path / "output" / "last-error.json").read_text())
    assert (error["code"], error["node_rank"]) == (66, 0)


def test_a_model_that_may_not_be_read_is_66_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals: Signals
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").touch()
    # Root, which tests may run as, can read everything.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "model.safetensors")
    code, message = run(plan_in(tmp_path, env={"STOKER_ARG_MODEL_NAME_OR_PATH": str(model)}), signals)
    assert code is ExitCode.NO_INPUT
    assert re.fullmatch(r".*/model.safetensors cannot be read by UID .*chmod -R g\+rX\)", message), message


def test_everything_that_is_missing_is_said_at_once(tmp_path: Path, signals: Signals) -> None:
    missing = {"STOKER_ARG_MODEL_NAME_OR_PATH": "/no/model", "STOKER_ARG_DATASET_NAME": "/no/dataset"}
    code, message = run(plan_in(tmp_path, "--report_to", "wandb", env=missing), signals)
    assert code is ExitCode.CONFIG
    first, second, third, fourth = message.splitlines()
    assert "the model /no/model does not exist: " in first
    assert second.startswith("the data set /no/dataset does not exist: ")
    assert third.startswith("--report_to wandb needs the Python package wandb, which is not installed: ")
    assert fourth.startswith("--report_to wandb needs an account: set WANDB_API_KEY ")


@pytest.mark.usefixtures("installed")
def test_a_peers_failure_while_getting_ready_is_not_recorded_as_this_nodes_own(
    tmp_path: Path, signals: Signals
) -> None:
    plan = plan_in(tmp_path, env={"PET_MASTER_ADDR": "absent-node-0-0.invalid"})
    other = SharedFolder(tmp_path, plan.run_id, 1)
    other.publish(Verdict(ExitCode.CRASHED, "ValueError: x"))
    cause = {"node_rank": 1, "run_id": plan.run_id, "message": "ValueError: x"}
    (tmp_path / "output").mkdir(exist_ok=True)
    (tmp_path / "output" / "last-error.json").write_text(json.dumps(cause))
    code, message = run(plan, signals)
    assert (code, message) == (ExitCode.CRASHED, "the trainer crashed: node 1: ValueError: x")
    assert json.loads((tmp_path / "output" / "last-error.json").read_text()) == cause, (
        "the node with the cause wrote it"
    )
    assert not SharedFolder(tmp_path, plan.run_id, 2).verdicts()[0].primary
    assert not (tmp_path / ".stoker" / "crashes.json").exists(), "not a crash of this node"


def hanging(tmp_path: Path, plan: Plan, signals: Signals) -> Verdict:
    """Return the verdict on a node whose rank 0 showed one sign of life and no more."""
    shared = SharedFolder(tmp_path, "r", 0)
    local = LocalFolder(tmp_path)
    child = sleeper()
    pulse = Pulse(local.ranks, 0)
    for number in range(3):
        pulse.beat(TRAINING, number)
    beaten = read_beats(local.ranks)[0]
    record = struct.Struct("<qqqq").pack(beaten.count, beaten.step, 1, child.pid)
    # Of the sleeper, not of this process: it is asked for its stacks.
    (local.ranks / "0.pulse").write_bytes(record)
    verdict = launch._watch(plan, shared, local, signals, child)
    assert child.returncode is not None
    assert verdict is not None
    return verdict


def test_a_hang_ends_the_node_and_names_rank_and_step(tmp_path: Path, signals: Signals) -> None:
    plan = plan_in(tmp_path, env={"STOKER_HANG_TIMEOUT_SECONDS": "1", "PET_NNODES": "1"})
    verdict = hanging(tmp_path, plan, signals)
    assert verdict.code is ExitCode.CRASHED
    assert "no sign of life from rank 0 after step 2 (training)" in verdict.message


def test_nodes_tell_each_other_which_rank_hangs(
    tmp_path: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_HANG_WORD_SECONDS", 1)
    plan = plan_in(tmp_path, env={"STOKER_HANG_TIMEOUT_SECONDS": "1000"})
    other = SharedFolder(tmp_path, "r", 1)
    other.publish_beats({1: Beat(2, 1, TRAINING, 9)})
    verdict = hanging(tmp_path, plan, signals)
    assert "no sign of life from rank 1 after step 1 (training) while the others wait" in verdict.message
    assert not verdict.primary, "the cause is on the other node"
    assert SharedFolder(tmp_path, "r", 1).beats().keys() == {0}
