"""Whatever clocks, the API, kills and stops do, at most one engine uses a device, and each gets its turn.

No engine serves without all of its weights either, and each gets the newest ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from runner.tests.serve.slices.model import HOOK_SECONDS, Claimant, Device, World, play

from stoker.serve.slices.guard import RUNNING, Permit, Sight
from stoker.serve.slices.permits import Fencing, way_to_park
from stoker.serve.slices.record import Record
from stoker.serve.slices.turns import Rules, Turns

RUNS = [300, pytest.param(5_000, marks=pytest.mark.full)]
KIND = World(2, Rules(poll=0.25, quantum=4.0))
HARSH = World(
    2,
    Rules(poll=1.0, quantum=2.0),
    faults=100.0,
    loss=0.05,
    late=0.05,
    stop=0.05,
    hang=15.0,
    kill=60.0,
    drift=0.01,
    versions=5.0,
    drops=True,
)
# Others have the device while one is stopped.
STOPS = World(3, HARSH.rules, faults=100.0, stop=0.03, drift=0.01)
CRASHES = replace(STOPS, crash=15.0)


def play_long(number: int, decides: type[Turns] = Turns, device: type[Device] = Device) -> None:
    """Play runs in which much goes wrong for long."""
    for world in (HARSH, (STOPS, CRASHES)[number % 2]):
        device(world, random.Random(number), decides).play(until=150)


@pytest.mark.parametrize("runs", RUNS)
def test_one_at_a_time_and_each_in_turn(runs: int) -> None:
    for number in range(runs):
        play(number)
        if number % 10 == 0:
            play_long(number // 10)


def test_one_that_is_alone_is_never_parked() -> None:
    run = Device(replace(KIND, claimants=1), random.Random(1))
    run.play(until=600)
    (one,) = run.claimants
    assert (run.switches, one.engines) == (1, 1)
    assert one.held > 595


def test_two_that_are_equal_get_equal_shares() -> None:
    run = Device(KIND, random.Random(1))
    run.play(until=2_000)
    one, other = run.claimants
    assert 0.95 < one.held / other.held < 1.05
    assert one.held + other.held > 0.75 * 2_000  # the rest of the time goes to switches


def test_reloads_make_no_turn_longer() -> None:
    run = Device(replace(KIND, faults=2_000, versions=0.5), random.Random(1))
    one, other = run.claimants
    other.newest = -1_000_000  # of one of them nothing is newer than what it has
    run.play(until=2_000)
    assert one.has > 100
    assert other.has == 0
    assert abs(len(one.used) - len(other.used)) <= 1
    # A little of its turns is spent on reloads.
    assert 0.5 < one.held / other.held < 1.05


class Waiting(Device):
    """Has engines that wait, paused, for what is read, and watchers that withdraw no request."""

    def waits(self, one: Claimant) -> float:
        """Wait until everything is read."""
        return max(0.0, one.read_at - self.now)

    def withdrawn(self, one: Claimant) -> int:
        """Ask for what is no longer there."""
        return one.reload


def claimants_of(device: type[Device]) -> list[Claimant]:
    """Return the claimants of a run in which reading takes longer than an engine may be paused."""
    run = device(replace(KIND, faults=500, versions=5.0, reads=4 * HOOK_SECONDS), random.Random(1))
    run.play(until=500)
    return run.claimants


def test_a_turn_that_comes_while_a_version_is_read_ends_no_engine() -> None:
    for one in claimants_of(Device):
        assert one.engines == 1, "its engine was ended"
        assert one.has > 20, "no weights are loaded"
    assert max(one.engines for one in claimants_of(Waiting)) > 1


class NeverSuspends(Turns):
    """Does not stop by itself, and its permit never runs out."""

    @property
    def until(self) -> float:
        return -1e9 if self.term is None else 1e9

    def _tick(self, now: float) -> None:
        return None


class CountsFromTheAnswer(Turns):
    """Believes that a renewal holds from when it heard of it."""

    def wrote(self, record: Record, version: str, sent: float, now: float) -> None:
        super().wrote(record, version, now, now)


class Impatient(Turns):
    """Takes the device of one that it has not heard of for a moment."""

    def _expired(self) -> bool:
        return self._silent(self._record.holder, self._record.term) >= 4.0


class Blind(Device):
    """Has an API that lets everybody write over everything."""

    compares = False


class Trusting(Device):
    """Has processes that trust an engine which may yet be told to go on."""

    @staticmethod
    def ways(permit: Permit | None, sight: Sight | None, started: float) -> Fencing:
        """Trust a permit of any state."""
        return way_to_park(replace(permit, state=RUNNING) if permit and permit.allows else permit, sight, started)


class Unchecked(Device):
    """Has processes that let an engine go on whose permit they wrote too late for its guard."""

    checks = False


class Unmarked(Device):
    """Has processes that do not say that they ask an engine to park: one that ends just then starts again."""

    asked = RUNNING


class TwoOwners(Device):
    """Has watchers that pause engines and let them go on themselves."""

    def watch(self, one: Claimant) -> None:
        """Read what is newer, and load it."""

        def swap() -> None:
            one.staged = one.newest
            self.swap(one, one.newest, resume, nothing)

        def resume() -> None:
            self.request(one, lambda: self.account(one, active=True), nothing, nothing)

        def nothing() -> None:
            return

        if one.engine and one.has < one.newest:
            self.request(one, lambda: self.account(one, active=False), swap, nothing)
        self.at(self.now + 2.0, lambda: self.watch(one))


class ReloadsUnmarked(Device):
    """Has processes that do not say that an engine which loads weights will be let go on."""

    loading = RUNNING


class Careless(Device):
    """Has processes that let an engine go on which did not say that it has loaded its weights."""

    def swap(self, one: Claimant, name: int, done: Callable[[], None], failed: Callable[[], None]) -> None:
        """Load, and go on in any case."""
        super().swap(one, name, done, done)


class Emptied(Device):
    """Has engines that are let go on without the weights that they have dropped."""

    restores = False


class Barging(Turns):
    """Takes the device as soon as it is free, whoever came first."""

    def _witness(self, now: float) -> None:
        super()._witness(now)
        if self.term is None and not self._record.holder:
            self._alive = tuple(one for one in self._alive if one.holder == self.me)


@pytest.mark.parametrize(
    ("decides", "device"),
    [
        (NeverSuspends, Device),
        (CountsFromTheAnswer, Device),
        (Impatient, Device),
        (Turns, Blind),
        (Turns, Trusting),
        (Turns, Unchecked),
        (Turns, Unmarked),
        (Turns, TwoOwners),
        (Turns, ReloadsUnmarked),
        (Turns, Careless),
        (Turns, Emptied),
        (Barging, Device),
    ],
    ids=lambda kind: kind.__name__,
)
def test_the_model_finds_what_is_wrong(decides: type[Turns], device: type[Device]) -> None:
    def search() -> None:
        for number in range(1_000):
            play(number, decides, device)
            play_long(number, decides, device)

    with pytest.raises(AssertionError):
        search()
