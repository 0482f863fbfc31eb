"""Real processes of `stoker slice` and engines that note each request; the Lease API is a stand-in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from runner.tests.serve.slices.lease_api import TOKEN, LeaseApi, serving
from runner.tests.serve.slices.processes import (
    DURATION,
    HOOK_SECONDS,
    LEASE,
    NEXT,
    WAIT,
    Device,
    Engine,
    Member,
    check,
    harm_one,
    lease_api,
    next_one_within,
    wait_for,
)

import stoker
from stoker.serve.slices import guard
from stoker.serve.slices.reloads import Reloads
from stoker.serve.vllm import Server
from stoker.serve.weights import files
from stoker.serve.weights.watch import WeightsWatch


@pytest.fixture
def api(tmp_path: Path) -> Iterator[LeaseApi]:
    """The API that has the Lease."""
    with lease_api(tmp_path) as found:
        yield found


@pytest.fixture
def device(tmp_path: Path, api: LeaseApi) -> Iterator[Device]:
    """Two engines that share a device."""
    made = Device(tmp_path, api.words)
    yield made
    made.close()


def stop_in_a_request(engine: Engine, process: subprocess.Popen[bytes]) -> None:
    """Stop an engine while it uses the device."""

    def is_stopped() -> bool:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def is_in_a_request() -> bool:
        process.send_signal(signal.SIGSTOP)
        wait_for(is_stopped, "it does not stop", pause=0.001)
        if "end" not in engine.lines()[-1]:
            return True
        process.send_signal(signal.SIGCONT)
        return False

    wait_for(is_in_a_request, "it has no request", pause=0.003)


@pytest.mark.parametrize("then", [signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL], ids=lambda one: one.name)
def test_an_engine_that_ends_no_request_has_the_device_until_it_is_gone(tmp_path: Path, then: signal.Signals) -> None:
    engines = [Engine(name, tmp_path / name) for name in ("a", "b")]
    with ExitStack() as stack:  # nobody guards them

        def start(engine: Engine) -> subprocess.Popen[bytes]:
            process = stack.enter_context(subprocess.Popen(engine.command()))
            stack.callback(process.kill)
            return process

        one = start(engines[0])
        wait_for(lambda: bool(engines[0].served()), "the first does not serve")
        stop_in_a_request(engines[0], one)
        one.send_signal(then)
        if then is signal.SIGKILL:
            one.wait()
        start(engines[1])
        wait_for(lambda: bool(engines[1].served()), "the other does not serve")
    if then is signal.SIGKILL:
        check(engines)
    else:
        with pytest.raises(AssertionError, match=r"while another engine had the device|served until"):
            check(engines)


def test_two_take_turns(device: Device, api: LeaseApi) -> None:
    wait_for(lambda: device.turns() > 20, "no turns")
    assert all(member.begun() for member in device.members)
    for member in device.members:
        member.asks.terminate()
    # Told to stop they give the device back.
    assert [member.asks.wait(WAIT) for member in device.members] == [0, 0]
    assert api.holder(LEASE) == ""
    device.check()
    counts = [len(member.events("running")) for member in device.members]
    assert max(counts) - min(counts) <= 1
    # Nobody was asked to end: each has had one engine.
    pids = [{json.loads(line)["pid"] for line in member.requests.read_text().splitlines()} for member in device.members]
    assert [len(found) for found in pids] == [1, 1]


@pytest.mark.alone
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
    harm_one(device, harm)


@pytest.mark.full
def test_lost_answers_cost_turns_but_mix_up_nobody(device: Device, api: LeaseApi) -> None:
    api.loss = 0.2
    wait_for(lambda: device.turns() >= 30, "no turns", 300)
    device.check()


class Run:
    """A run of all weights that has a member of a device for its sampler: it publishes, and a watcher follows.

    Args:
        member: the sampler.
        folder: of its versions.
    """

    def __init__(self, member: Member, folder: Path) -> None:
        self.member, self.newest = member, -1
        self._folder = folder
        server = Server(f"http://127.0.0.1:{member.port}", 30)
        self.watch = WeightsWatch(folder, "base", server, {}, reloads=Reloads(member.folder))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def publish(self) -> None:
        """Publish a version."""
        self.newest += 1
        files.place(self._folder / "run-a0", self.newest, None, lambda draft: (draft / files.TENSORS).touch())

    def serves_the_newest(self) -> bool:
        """Return whether its sampler has, as the watcher says."""
        return [*self.watch.state.loaded] == [f"run-a0:{self.newest}"]

    def versions(self) -> list[int]:
        """Return the versions that requests were served with, one after the other."""
        found = [int(str(line["has"]).partition(":")[2] or -1) for line in self.member.lines()]
        return [one for one, before in zip(found, [None, *found], strict=False) if one != before]

    def close(self) -> None:
        """End the watcher."""
        self._stop.set()
        self._thread.join(WAIT)

    def _follow(self) -> None:
        while not self._stop.wait(0.1):
            self.watch.look()


@contextmanager
def two_runs(folder: Path, *words: str, load: int = 1, read: float = 0.0) -> Iterator[tuple[Device, list[Run]]]:
    """Have two engines that share a device, and two runs that train all their weights."""
    config = folder / "vllm.yaml"
    config.write_text("worker-extension-cls: stoker_in_vllm.Weights\n")
    with lease_api(folder) as api:
        made = Device(folder, [*api.words, "--config", str(config), *words], 0.5, load=load, read=read)
        runs = [Run(member, folder / f"versions-{member.name}") for member in made.members]
        try:
            yield made, runs
        finally:
            for run in runs:
                run.close()
            made.close()


@pytest.fixture(params=[0, pytest.param(2, marks=pytest.mark.full)], ids="sleep level {}".format)
def learning(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Device, list[Run]]]:
    """Two engines that share a device, and the two runs that train all their weights."""
    with two_runs(tmp_path, "--sleep-level", str(request.param)) as made:
        yield made


def check_weights(device: Device, runs: Sequence[Run]) -> None:
    """Check that both have the newest version in the end, and never served, or loaded, what was not whole."""
    for run in runs:
        wait_for(run.serves_the_newest, "it does not get the newest version")
        assert not [line for line in run.member.lines() if line["torn"]], "it served while it loaded weights"
    device.check()


@pytest.mark.alone  # a machine that stands still for seconds ends an engine
def test_weights_are_loaded_in_turns(learning: tuple[Device, list[Run]]) -> None:
    device, runs = learning
    while any(len(run.member.events("reloaded")) < 5 or len(run.member.events("given")) < 4 for run in runs):
        assert max(run.newest for run in runs) < 600, "weights are not loaded"
        for run in runs:
            run.publish()
        time.sleep(0.2)
    check_weights(device, runs)
    for run in runs:
        assert run.versions() == sorted(run.versions())
        assert len({line["pid"] for line in run.member.lines()}) == 1, "its engine was ended"


def test_an_engine_without_requests_gets_its_turn_to_load_weights(tmp_path: Path) -> None:
    # Nobody asks for a version before it is loaded.
    with two_runs(tmp_path, "--by-load", load=0) as (device, runs):
        for _ in range(3):
            for run in runs:
                run.publish()
            for run in runs:
                wait_for(run.serves_the_newest, "it does not get the newest version")
        check_weights(device, runs)


def test_a_turn_that_comes_while_a_version_is_read_ends_no_engine(tmp_path: Path) -> None:
    with two_runs(tmp_path, read=1.5 * HOOK_SECONDS) as (device, runs):
        run, one = runs[0], runs[0].member
        server = Server(f"http://127.0.0.1:{one.port}", 30)
        wait_for(lambda: bool(one.events("running")), "no turn")
        run.publish()
        wait_for(lambda: not server.workers("stoker_staged")[0]["done"], "nothing is read", pause=0.005)
        # A request that is older than what is read: `stoker slice run` was about to do it.
        Reloads(one.folder).wait("run-a0:0", 0)
        wait_for(lambda: bool(one.events("reloaded")), "the request is not answered")
        assert not one.events("reloaded")[0]["failed"]
        assert one.events("reloaded")[0]["seconds"] < HOOK_SECONDS / 2, "its turn waits for a disk"
        wait_for(run.serves_the_newest, "it does not get the version that was read")
        assert len({line["pid"] for line in one.lines()}) == 1, "its engine was ended"
        device.check()


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.parametrize(
    "harm", ["SIGKILL of the one that asks", "SIGSTOP of the one that asks", "SIGSTOP of the engine"]
)
def test_what_stops_while_weights_are_loaded_loses_its_turn(learning: tuple[Device, list[Run]], harm: str) -> None:
    device, runs = learning
    one = runs[0]
    what = signal.Signals[harm.partition(" ")[0]]

    def is_loading() -> bool:
        if runs[0].serves_the_newest():  # it was loaded between two looks
            runs[0].publish()
        return (guard.read_permit(one.member.folder) or guard.Permit()).state == guard.LOADING

    for run in runs:
        run.publish()
    wait_for(is_loading, "weights are not loaded", pause=0.005)
    if harm.endswith("asks"):
        one.member.asks.send_signal(what)
    else:
        os.kill(one.member.engine(), what)
    next_one_within(device, one.member, NEXT)
    if what is signal.SIGKILL:
        one.member.asks.wait()
        one.member.asks = one.member.start()
    one.member.asks.send_signal(signal.SIGCONT)
    for run in runs:
        run.publish()
    check_weights(device, runs)


def test_one_that_is_alone_keeps_the_device(tmp_path: Path) -> None:
    with lease_api(tmp_path) as api:
        member = Member("a", tmp_path / "a", api.words, 0.1, DURATION)
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


def test_in_a_pod_a_guard_that_starts_later_is_told_too(tmp_path: Path) -> None:
    # The kubelet starts the engine's container once it has seen `stoker slice run`, however soon that fails.
    with serving(LeaseApi(), tmp_path / "account") as words:
        command = [sys.executable, "-m", "stoker", "slice", "run", LEASE, "--folder", str(tmp_path), *words]
        pod = {"PYTHONPATH": str(Path(stoker.__file__).parents[1]), "KUBERNETES_SERVICE_HOST": "127.0.0.1"}
        asks = subprocess.Popen([*command, "--engine", "http://127.0.0.1:9"], env={**os.environ, **pod})
        try:
            wait_for(lambda: guard.read_permit(tmp_path) is not None, "nothing told")
            with pytest.raises(subprocess.TimeoutExpired):
                asks.wait(2)
            guarding = [sys.executable, "-I", guard.__file__, str(tmp_path), "true"]
            assert subprocess.run(guarding, timeout=WAIT, check=False).returncode == 78
            assert asks.wait(WAIT) == 78
        finally:
            asks.kill()
            asks.wait()
