"""Processes that take turns at a device: `stoker slice run`, its guard and a stand-in for the engine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from runner.tests.serve.slices.lease_api import LeaseApi, serving

import stoker
from stoker.serve.slices import guard

HERE = Path(__file__).parent
LEASE = "gpu-0"
# Long enough that a busy machine stops an engine in time.
DURATION = 5.0
HOOK_SECONDS = 2.0
WAIT = 120.0
# Seconds that an engine may take to start.
START = 900.0
# Seconds after the expiry of a Lease within which the next one has the device.
NEXT = 12.0


def free_port() -> int:
    """Return a port that nobody has."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def wait_for(what: Callable[[], bool], why: str, seconds: float = WAIT, pause: float = 0.05) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, why
        time.sleep(pause)


@contextmanager
def lease_api(folder: Path) -> Iterator[LeaseApi]:
    """Serve a stand-in for the Lease API, with the Lease of the device, until the end of the block."""
    api = LeaseApi()
    api.make(LEASE)
    with serving(api, folder / "account"):
        yield api


class Engine:
    """What the engines in a folder have written.

    Args:
        name: of the folder.
        folder: the folder, beside those of the engines that share their device.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.requests, self.port = name, folder / "requests.jsonl", free_port()
        folder.mkdir()

    def command(self, load: int = 1, read: float = 0.0) -> list[str]:
        """Return the command that starts one."""
        words = [str(self.port), str(self.requests), str(load), str(read)]
        return [sys.executable, str(HERE / "stand_in_engine.py"), *words]

    def lines(self) -> list[dict[str, Any]]:
        """Return what they wrote; a line that was cut off is left out."""
        lines = self.requests.read_text().splitlines() if self.requests.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def served(self) -> list[tuple[float, float]]:
        """Return when each request used the device; one that was cut off by the end of its engine is left out."""
        return [(one["begin"], one["end"]) for one in self.lines() if "end" in one]

    def begun(self) -> int:
        """Return how many lines there are about requests."""
        return len(self.requests.read_text().splitlines()) if self.requests.exists() else 0


class Member(Engine):
    """An engine, its guard, and its `stoker slice run`."""

    def __init__(
        self,
        name: str,
        folder: Path,
        words: list[str],
        quantum: float,
        duration: float,
        load: int = 1,
        read: float = 0.0,
    ) -> None:
        super().__init__(name, folder)
        self.folder, self.journal, self.load, self.read = folder, folder / "journal.jsonl", load, read
        self.words = [
            *(sys.executable, "-m", "stoker", "slice", "run", LEASE, "--folder", str(folder), "--name", name),
            *("--engine", f"http://127.0.0.1:{self.port}", "--sleep-level", "0", "--quantum", str(quantum)),
            *(
                "--lease-seconds",
                str(duration),
                "--hook-seconds",
                str(HOOK_SECONDS),
                "--journal",
                str(self.journal),
                *words,
            ),
        ]
        self.guard = self.start_guard()
        self.asks = self.start()

    def enter(self, command: list[str]) -> list[str]:
        """Return the command that starts another one where this member's processes are."""
        return command

    def start(self) -> subprocess.Popen[str]:
        """Start `stoker slice run`."""
        environ = {**os.environ, "PYTHONPATH": str(Path(stoker.__file__).parents[1])}
        return subprocess.Popen(self.enter(self.words), env=environ, text=True)

    def start_guard(self) -> subprocess.Popen[bytes]:
        """Start the guard as the engine's container does: one file, without our package."""
        engine = self.command(self.load, self.read)
        return subprocess.Popen(self.enter([sys.executable, "-I", guard.__file__, str(self.folder), *engine]))

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Return the lines of the journal, all or those about something."""
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        return [found for line in lines if (found := json.loads(line))["event"] in names or not names]

    def runs(self) -> bool:
        """Return whether this is its turn, as it knows by itself."""
        return [line["event"] for line in self.events()[-1:]] == ["running"]

    def engine(self) -> int:
        """Return the process of the engine."""
        return int(json.loads(self.requests.read_text().splitlines()[-1])["pid"])

    def end(self) -> None:
        """End all processes."""
        for process in (self.asks, self.guard):
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(WAIT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def check(engines: Sequence[Engine]) -> None:
    """Check that no two of two engines used their device at the same time."""
    times = sorted((*served, engine.name) for engine in engines for served in engine.served())
    assert len({name for *_, name in times}) == 2, "one never served"
    for (_, end, name), (begin, _, other) in pairwise(times):
        assert name == other or end <= begin, f"{name} served until {end}, {other} from {begin}"
    # A request without an end has no time here: its engine was killed, or is stopped and has the device still.
    for engine in engines:
        shared = [line["begin"] for line in engine.lines() if line["shared"]]
        assert not shared, f"{engine.name} served from {shared[0]}, while another engine had the device"


class Device:
    """A device with engines that share it.

    Args:
        folder: for what they write.
        words: for `stoker slice run`: how it finds the API, and more.
        quantum: seconds of a turn.
        duration: seconds after which a holder that is not heard of has lost the Lease.
        load: requests that a stand-in engine says it has.
        read: seconds that its workers take to read a version.
        make: makes a member.
    """

    def __init__(
        self,
        folder: Path,
        words: Sequence[str],
        quantum: float = 0.2,
        duration: float = DURATION,
        load: int = 1,
        read: float = 0.0,
        make: Callable[..., Member] = Member,
    ) -> None:
        self._stack = ExitStack()
        self.members = []
        for name in ("a", "b"):
            member = make(name, folder / name, [*words], quantum, duration, load, read)
            self.members.append(member)
            self._stack.callback(member.end)

    def turns(self) -> int:
        """Return how many turns there were."""
        return sum(len(member.events("running")) for member in self.members)

    def one_runs(self) -> Member:
        """Wait until an engine serves, and return whose it is."""
        found: list[Member] = []

        def serves() -> bool:
            found[:] = [one for one in self.members if one.begun() and one.runs()]
            return bool(found)

        wait_for(serves, "no engine serves")
        return found[0]

    def other(self, one: Member) -> Member:
        """Return the other one."""
        return next(member for member in self.members if member is not one)

    def check(self) -> None:
        """Check that no two engines used the device at the same time."""
        check(self.members)

    def close(self) -> None:
        """End everything."""
        self._stack.close()


def next_one_within(device: Device, one: Member, seconds: float) -> None:
    """Wait until the other engine serves, which it must within some time of the expiry of the Lease."""
    other, began = device.other(one), time.monotonic()
    before = len(other.events("running"))
    wait_for(lambda: len(other.events("running")) > before, "the other one never got its turn")
    assert time.monotonic() - began < DURATION + seconds


def harm_one(device: Device, harm: str) -> None:
    """Kill or stop a part of the one that has the device: the other gets it in time, and the harmed one gets it again.

    Args:
        device: whose members take turns.
        harm: such as "SIGKILL of the engine": of the engine, the guard, or the one that asks.
    """
    wait_for(lambda: device.turns() >= 4, "no turns")
    one = device.one_runs()
    what = signal.Signals[harm.partition(" ")[0]]
    if harm.endswith("asks"):
        one.asks.send_signal(what)
    elif harm.endswith("guard"):
        one.guard.send_signal(what)
    else:
        os.kill(one.engine(), what)
    next_one_within(device, one, NEXT)
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

    wait_for(back, "it never got a turn again", START)
    begun = one.begun()
    wait_for(lambda: one.begun() > begun, "it does not serve in its turn", START)
    device.check()
