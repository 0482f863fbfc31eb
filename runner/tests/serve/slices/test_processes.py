"""Real processes of `stoker slice` and engines that note each request; the Lease API is a stand-in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from runner.tests.serve.slices.lease_api import TOKEN, LeaseApi, serving
from runner.tests.serve.slices.processes import DURATION, LEASE, WAIT, Device, Member, wait_for

import stoker
from stoker.serve.slices import guard


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    """Two engines that share a device."""
    made = Device(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("switches", [20, pytest.param(1_000, marks=pytest.mark.full)])
def test_two_take_turns(device: Device, switches: int) -> None:
    wait_for(lambda: device.turns() > switches, "no turns", WAIT + switches)
    assert all(member.begun() for member in device.members)
    for member in device.members:
        member.asks.terminate()
    # Told to stop they give the device back.
    assert [member.asks.wait(WAIT) for member in device.members] == [0, 0]
    assert device.api.holder(LEASE) == ""
    device.check()
    counts = [len(member.events("running")) for member in device.members]
    assert max(counts) - min(counts) <= 1
    if switches >= 1_000:
        held = [sum(line["held"] for line in member.events("given")) for member in device.members]
        assert 0.95 < held[0] / held[1] < 1.05
    # Nobody was asked to end: each has had one engine.
    pids = [{json.loads(line)["pid"] for line in member.requests.read_text().splitlines()} for member in device.members]
    assert [len(found) for found in pids] == [1, 1]


def next_one_within(device: Device, one: Member, seconds: float) -> None:
    """Wait until the other engine serves, which it must within some time of the expiry of the Lease."""
    other, began = device.other(one), time.monotonic()
    before = len(other.events("running"))
    wait_for(lambda: len(other.events("running")) > before, "the other one never got its turn")
    assert time.monotonic() - began < DURATION + seconds


@pytest.mark.parametrize(
    "harm",
    [
        "SIGSTOP of the one that asks",
        pytest.param("SIGKILL of the one that asks", marks=pytest.mark.full),
        pytest.param("SIGSTOP of the engine", marks=pytest.mark.full),
        pytest.param("SIGKILL of the engine", marks=pytest.mark.full),
        pytest.param("SIGKILL of the guard", marks=pytest.mark.full),
        pytest.param("SIGSTOP of the guard", marks=pytest.mark.full),
    ],
)
def test_what_is_killed_or_stopped_loses_its_turn(device: Device, harm: str) -> None:
    wait_for(lambda: device.turns() >= 4, "no turns")
    one = device.one_runs()
    what = signal.Signals[harm.partition(" ")[0]]
    if harm.endswith("asks"):
        one.asks.send_signal(what)
    elif harm.endswith("guard"):
        one.guard.send_signal(what)
    else:
        os.kill(one.engine(), what)
    next_one_within(device, one, 12)
    # What was stopped goes on, and what was killed is started again, as the kubelet would.
    turns = len(one.events("running"))
    if one.guard.poll() is not None:
        one.guard = one.start_guard()
    one.guard.send_signal(signal.SIGCONT)
    if what is signal.SIGKILL and harm.endswith("asks"):
        one.asks.wait()
        one.asks = one.start()
    one.asks.send_signal(signal.SIGCONT)

    def back() -> bool:
        if one.guard.poll() is not None:
            one.guard = one.start_guard()
        return len(one.events("running")) > turns

    wait_for(back, "it never got a turn again")
    device.check()


@pytest.mark.full
def test_an_api_that_does_not_answer_stops_everybody_and_ends_nobody(device: Device) -> None:
    wait_for(lambda: device.turns() >= 4, "no turns")
    device.api.silent = True
    time.sleep(DURATION)
    counts = [member.begun() for member in device.members]
    time.sleep(2.0)
    assert [member.begun() for member in device.members] == counts, "an engine serves without a Lease"
    device.api.silent = False
    turns = [len(member.events("running")) for member in device.members]
    for member, before in zip(device.members, turns, strict=True):
        wait_for(partial(_has_more, member, before), "no turn")
    device.check()


def _has_more(member: Member, turns: int) -> bool:
    return len(member.events("running")) > turns


@pytest.mark.full
def test_lost_answers_cost_turns_but_mix_up_nobody(device: Device) -> None:
    device.api.loss = 0.2
    wait_for(lambda: device.turns() >= 30, "no turns", 300)
    device.check()


def test_one_that_is_alone_keeps_the_device(tmp_path: Path) -> None:
    api = LeaseApi()
    api.make(LEASE)
    with serving(api, tmp_path / "account") as words:
        member = Member("a", tmp_path / "a", words, 0.1, DURATION)
        try:
            wait_for(lambda: bool(member.events("running")), "no turn")
            api.calls.clear()
            time.sleep(DURATION / 2)
            # Signs of life alone, and no switch.
            assert {*api.calls} == {"PUT"}
            assert len(api.calls) <= 4
            assert [len(member.events(event)) for event in ("running", "given")] == [1, 0]
        finally:
            member.end()


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        ([], 78, "the Lease does not exist; create it: kubectl create"),
        (["no update"], 78, "may not update it: give it a Role with resources [leases]"),
        (["403"], 78, "may not get it: give it a Role with resources [leases]"),
        (["401"], 78, "does not know the token"),
        (["foreign"], 78, "held by another, which is not `stoker slice`"),
    ],
)
def test_a_lease_that_cannot_be_used_is_told_at_once(tmp_path: Path, more: list[str], code: int, says: str) -> None:
    api = LeaseApi()
    if more:
        api.make(LEASE)
    if more == ["403"]:
        api.forbidden.add("GET")
    elif more == ["no update"]:
        api.forbidden.add("PUT")
    elif more == ["401"]:
        api.tokens = {TOKEN + "-of-another"}
    elif more == ["foreign"]:
        api.leases[LEASE]["spec"]["holderIdentity"] = "another"
    # A guard, that there is something to ask for.
    guarding = subprocess.Popen([sys.executable, "-I", guard.__file__, str(tmp_path), "true"])
    with serving(api, tmp_path / "account") as words:
        command = [sys.executable, "-m", "stoker", "slice", "run", LEASE, "--folder", str(tmp_path), *words]
        done = subprocess.run(
            [*command, "--engine", "http://127.0.0.1:9"],
            capture_output=True,
            text=True,
            timeout=WAIT,
            env={**os.environ, "PYTHONPATH": str(Path(stoker.__file__).parents[1])},
            check=False,
        )
    guarding.kill()
    guarding.wait()
    assert (done.returncode, done.stderr.count("stoker: error: ")) == (code, 1)
    assert says in done.stderr
