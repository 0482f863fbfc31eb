"""A discrete-event model of engines that share a device.

It has the real decisions (`turns`, `way_to_park`, the guard's) and everything around them as unkind as it may be:
clocks that run apart, an API that loses requests and answers and applies writes late, processes that are stopped or
killed at any point, engines that hang, and hooks whose effect comes after the one who waited for it has given up.
Watchers read new weights beside the engines, to be loaded in their turns.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from stoker.serve.slices.guard import (
    ENGINE,
    IDLE,
    LOADING,
    PARKED,
    PARKING,
    RUNNING,
    STARTING,
    STOP,
    Permit,
    Sight,
    may_start,
    must_end,
)
from stoker.serve.slices.permits import Fencing, way_to_park
from stoker.serve.slices.record import Record
from stoker.serve.slices.turns import EngineState, Park, ReadLease, Reload, Rules, Turns, Use, Write

TIMEOUT = 2.0  # of the API's client
HOOK_SECONDS = 3.0
GUARD_SECONDS = 0.3  # the guard looks at least so often


@dataclass(frozen=True)
class World:
    """What may go wrong.

    Attributes:
        claimants: how many engines there are.
        rules: what they keep to.
        faults: seconds until which anything goes wrong.
        loss: share of requests, and of answers, that are lost.
        late: share of requests that the API takes long after the client gave up.
        stop: chance that a process is stopped where it is about to act, or waits for an answer.
        kill: seconds between two kills of the process that asks; 0 for none.
        crash: seconds between two ends of an engine by itself; 0 for none.
        hang: seconds between two stops of an engine; 0 for none.
        drift: how much clocks run apart.
        versions: seconds between two versions of the weights; 0 for none.
        reads: seconds that it takes at most to read a version.
        drops: engines that are parked have no weights, which are loaded again before they go on.
    """

    claimants: int
    rules: Rules
    faults: float = 0.0
    loss: float = 0.0
    late: float = 0.0
    stop: float = 0.0
    kill: float = 0.0
    crash: float = 0.0
    hang: float = 0.0
    drift: float = 0.0
    versions: float = 0.0
    reads: float = 0.5
    drops: bool = False


def any_world(draw: random.Random) -> World:
    """Return a world of any kind; a fifth of them are kind."""
    rules = Rules(poll=1.0, quantum=draw.choice([2.0, 4.0]))
    claimants = draw.choice([2, 2, 3, 4])
    if draw.random() < 0.2:
        return World(claimants, rules)
    often = draw.choice
    return World(
        claimants,
        rules,
        faults=15.0,
        loss=often([0.0, 0.05, 0.3]),
        late=often([0.0, 0.1]),
        stop=often([0.0, 0.02, 0.1]),
        kill=often([0.0, 10.0]),
        crash=often([0.0, 15.0]),
        hang=often([0.0, 15.0]),
        drift=often([0.0, 0.01]),
    )


@dataclass
class Claimant:
    """One engine, its guard, and the process that asks for the device."""

    name: int
    rate: float
    offset: float
    turns: Turns
    life: int = 0
    asleep: float = 0.0  # stopped until then
    asking: bool = False
    telling: bool = False
    wake: float = -1.0
    call: int = 0
    engine: int = 0  # which one runs; 0: none
    engines: int = 0
    active: bool = False
    hung: float = 0.0
    permit: Permit = field(default_factory=Permit)
    sight: Sight = field(default_factory=lambda: Sight(IDLE))
    started: float = 0.0
    held: float = 0.0
    since: float = 0.0
    used: list[float] = field(default_factory=list)
    # The weights of its engine, and what its watcher knows.
    newest: int = 0
    has: int = 0
    staged: int | None = None  # what the workers have read
    read_at: float = 0.0  # when they have read what they were told to
    reload: int = 0  # the version that the watcher has asked for; 0 for none
    half: bool = False  # weights are being loaded
    dropped: bool = False

    @property
    def uses(self) -> bool:
        """Whether its engine uses the device."""
        return self.active or self.half

    def clock(self, now: float) -> float:
        """Return what its machine's clock shows."""
        return self.offset + now * self.rate

    def when(self, shown: float) -> float:
        """Return when the clock shows that."""
        return (shown - self.offset) / self.rate


class Device:
    """Engines that share a device.

    Args:
        world: what may go wrong.
        draw: where chance comes from.
        decides: what decides for each.
    """

    compares = True  # the API refuses to write over what was not read
    ways = staticmethod(way_to_park)
    restores = True  # weights that were dropped are loaded before the engine goes on
    checks = True  # an engine is not told to go on if its permit was written too late
    asked = PARKING  # the permit of an engine that is asked to park
    loading = LOADING  # the permit of an engine that loads weights

    def __init__(self, world: World, draw: random.Random, decides: type[Turns] = Turns) -> None:
        self.world, self.draw, self.decides = world, draw, decides
        self.now, self.number = 0.0, 0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.record, self.version = Record(), 0
        self.switches = 0
        self.overtaken = 0
        self.claimants = []
        for name in range(world.claimants):
            rate = 1 + draw.uniform(-world.drift, world.drift)
            self.claimants.append(Claimant(name, rate, draw.uniform(0, 1e6), decides(f"{name}.0", world.rules)))
        for one in self.claimants:
            self.at(draw.random(), partial(self.step, one))
            for seconds, what in ((world.kill, self.kill), (world.crash, self.crash), (world.hang, self.hang)):
                if seconds:
                    self.fault(one, seconds, what)
            if world.versions:
                self.publish(one)
                self.watch(one)

    def play(self, until: float) -> None:
        """Let things happen until then."""
        while self.events and self.events[0][0] <= until:
            self.now, _, happens = heapq.heappop(self.events)
            happens()
        self.now = until
        for one in self.claimants:
            self.account(one, active=one.active)

    def at(self, when: float, happens: Callable[[], None]) -> None:
        """Plan something."""
        self.number += 1
        heapq.heappush(self.events, (when, self.number, happens))

    @property
    def faulty(self) -> bool:
        """Whether things go wrong by now."""
        return self.now < self.world.faults

    def chance(self, share: float) -> bool:
        """Return whether something goes wrong that does so in a share of cases."""
        return self.faulty and share > 0 and self.draw.random() < share

    # The process that asks.

    def step(self, one: Claimant) -> None:
        """Let it decide."""
        if self.postponed(one, lambda: self.step(one)):
            return
        now = one.clock(self.now)
        if not one.asking and (call := one.turns.call(now)) is not None:
            self.ask(one, call, now)
        one.turns.wish.reload = bool(one.reload)
        if not one.telling and (act := one.turns.act(now)) is not None:
            one.telling = True
            if isinstance(act, Use):
                self.use(one, act)
            elif isinstance(act, Reload):
                self.reload(one)
            else:
                assert isinstance(act, Park)
                self.park(one)
        if one.wake <= self.now:
            one.wake = self.now + min(1.0, one.turns.pause(now)) + 1e-3
            self.at(one.wake, lambda: self.step(one))

    def postponed(self, one: Claimant, happens: Callable[[], None]) -> bool:
        """Plan something for later if the process is stopped now."""
        if one.asleep > self.now:
            self.at(one.asleep, happens)
            return True
        return False

    def later(self, one: Claimant, seconds: float, happens: Callable[[], None]) -> None:
        """Let the process do something, unless it is killed; after a stop, if it is stopped."""
        life = one.life

        def then() -> None:
            if one.life == life and not self.postponed(one, then):
                happens()

        self.at(self.now + seconds, then)

    def about_to(self, one: Claimant) -> float:
        """Return for how long the process is stopped where it is about to act."""
        if self.chance(self.world.stop):
            one.asleep = self.now + self.draw.choice([0.5, 3.0, 6.0, 9.0, 20.0])
        return max(0.0, one.asleep - self.now)

    def kill(self, one: Claimant) -> None:
        """Kill the process that asks, and start it again."""
        one.life += 1
        one.asleep, one.asking, one.telling = 0.0, False, False
        one.turns = self.decides(f"{one.name}.{one.life}", self.world.rules)
        one.started = one.sight.since
        self.at(self.now + self.draw.choice([0.1, 2.0, 12.0]), lambda: self.step(one))

    def fault(self, one: Claimant, seconds: float, what: Callable[[Claimant], None]) -> None:
        """Let something go wrong, again and again."""

        def again() -> None:
            if self.faulty:
                what(one)
                self.fault(one, seconds, what)

        self.at(self.now + self.draw.expovariate(1 / seconds), again)

    # The API.

    def ask(self, one: Claimant, call: ReadLease | Write, sent: float) -> None:
        """Send a request."""
        one.asking = True
        one.call += 1
        number, life = one.call, one.life
        delay = self.about_to(one) + self.draw.uniform(0.001, 0.1)
        late = delay + self.draw.uniform(1, 20) if self.chance(self.world.late) else delay

        def answer(happens: Callable[[float], None]) -> None:
            if self.chance(self.world.loss):
                return

            def then() -> None:
                if one.call == number and one.asking:
                    one.asking = False
                    happens(one.clock(self.now))
                    self.step(one)

            if one.life == life:
                self.later(one, self.draw.uniform(0.001, 0.1), then)

        def arrive() -> None:
            before, version = self.record, self.version
            if one.life == life:
                self.about_to(one)  # stopped where it waits for the answer
            if isinstance(call, ReadLease):
                answer(lambda now: one.turns.saw(before, str(version), now))
            elif call.version != str(self.version) and self.compares:
                answer(lambda now: one.turns.refused())
            else:
                if call.record.term != before.term:
                    self.taken(before, call.record)
                self.record, self.version = call.record, self.version + 1
                record, written = self.record, str(self.version)

                def told(now: float) -> None:
                    one.turns.wrote(record, written, sent, now)
                    if one.turns.term is not None and one.permit.allows and one.turns.until > one.permit.until:
                        self.give(one, replace(one.permit, until=one.turns.until))

                answer(told)

        def give_up() -> None:
            if one.call == number and one.asking:
                one.asking = False
                one.turns.unanswered(one.clock(self.now))
                self.step(one)

        if not self.chance(self.world.loss):
            self.at(self.now + late, arrive)
        self.later(one, TIMEOUT, give_up)

    def taken(self, before: Record, after: Record) -> None:
        """Look at who takes the device."""
        mine = [ticket.number for ticket in before.queue if ticket.holder == after.holder]
        ahead = [t for t in before.queue if t.holder != after.holder and t.number < min(mine, default=10**9)]
        self.overtaken += bool(ahead)

    # The engine.

    def use(self, one: Claimant, act: Use) -> None:
        """Let the engine go on, or have one started."""

        def permitted() -> None:
            self.give(one, Permit(STARTING, act.until, act.term))
            self.later(one, self.about_to(one), check)

        def check() -> None:
            if self.checks and one.clock(self.now) >= act.until:
                self.told(one, EngineState.UNKNOWN)
            else:
                self.later(one, self.about_to(one), lambda: ask(self.now + 6.0))

        def ask(deadline: float) -> None:
            if not one.engine:
                if self.now < deadline and one.turns.term == act.term:
                    self.later(one, 0.2, lambda: ask(deadline))
                else:
                    self.told(one, EngineState.UNKNOWN)
                return

            def effect() -> None:
                self.account(one, active=True)

            def failed() -> None:
                self.told(one, EngineState.UNKNOWN)

            def resume() -> None:
                self.request(one, effect, lambda: self.runs(one), failed)

            def restored() -> None:
                one.half = one.dropped = False

            def restore() -> None:
                if one.dropped:  # another engine by now would load what it has
                    self.load(one)

            if one.dropped and self.restores:
                self.request(one, restored, resume, failed, begins=restore)
            else:
                resume()

        self.later(one, self.about_to(one), permitted)

    def park(self, one: Claimant) -> None:
        """Make sure that the engine does not use the device."""

        def done() -> None:
            self.later(one, self.about_to(one), parked)

        def parked() -> None:
            self.give(one, Permit(PARKED))
            self.told(one, EngineState.PARKED)

        def effect() -> None:
            self.account(one, active=False)
            one.dropped = self.world.drops

        def end() -> None:
            self.give(one, Permit(STOP))
            wait(self.now + 5.0)

        def wait(deadline: float) -> None:
            if one.sight.state == IDLE and one.sight.order >= one.permit.order:
                done()
            elif self.now > deadline:
                self.told(one, EngineState.UNKNOWN)
            else:
                self.later(one, 0.1, lambda: wait(deadline))

        def begin() -> None:
            way = self.ways(one.permit, one.sight, one.started)
            if way is Fencing.NOTHING:
                done()
            elif way is Fencing.ASK:
                self.give(one, replace(one.permit, state=self.asked))
                self.later(one, self.about_to(one), lambda: self.request(one, effect, done, end))
            else:
                end()

        self.later(one, self.about_to(one), begin)

    def runs(self, one: Claimant) -> None:
        """Note that nothing is under way any more that lets the engine run."""
        one.started = one.sight.since
        if one.permit.allows:
            self.give(one, replace(one.permit, state=RUNNING))
        self.told(one, EngineState.RUNNING)

    def reload(self, one: Claimant) -> None:
        """Let the engine load what its workers have read."""

        def failed() -> None:
            self.told(one, EngineState.UNKNOWN)

        name = 0

        def begin() -> None:
            nonlocal name
            name = one.reload
            if name:
                permitted()
            else:
                self.told(one, EngineState.RUNNING)

        def permitted() -> None:
            self.give(one, replace(one.permit, state=self.loading))
            self.later(one, self.about_to(one), pause)

        def pause() -> None:
            self.request(one, lambda: self.account(one, active=False), swap, failed)

        def swap() -> None:
            self.later(one, self.about_to(one), lambda: self.swap(one, name, resume, failed))

        def resume() -> None:
            one.reload = 0 if one.reload == name else one.reload
            self.later(one, self.about_to(one), lambda: self.request(one, effect, lambda: self.runs(one), failed))

        def effect() -> None:
            self.account(one, active=True, turn=False)

        self.later(one, self.about_to(one), begin)

    def swap(self, one: Claimant, name: int, done: Callable[[], None], failed: Callable[[], None]) -> None:
        """Load a version into an engine, if that is what its workers have read."""

        def begin() -> None:
            if one.staged == name:
                one.staged = None
                self.load(one)

        def loaded() -> None:
            if one.half:
                one.half, one.has = False, name

        self.request(one, loaded, done, failed, begins=begin, least=self.waits(one))

    def waits(self, _one: Claimant) -> float:
        """Return how long an engine that loads a version waits for its workers to have read it."""
        return 0.0

    def load(self, one: Claimant) -> None:
        """Begin to load weights, which uses the device."""
        assert not one.active, f"{one.name} serves while it loads weights, at {self.now:.3f}"
        self.alone(one)
        one.half = True

    # The watcher of its weights, which nothing stops.

    def publish(self, one: Claimant) -> None:
        """Have a newer version, again and again while things go wrong."""
        if self.now < max(self.world.faults, 15.0):
            one.newest += 1
            self.at(self.now + self.draw.expovariate(1 / self.world.versions), lambda: self.publish(one))

    def watch(self, one: Claimant) -> None:
        """Have the workers read what is newer, and ask for it to be loaded."""
        engine, newest = one.engine, one.newest
        if engine and one.has < newest and one.staged != newest:
            one.read_at = self.now + self.draw.uniform(0.01, self.world.reads)
            one.staged, one.reload = None, self.withdrawn(one)

        def staged() -> None:
            if engine and one.engine == engine and one.hung <= self.now and one.has < newest:
                one.staged, one.reload = newest, newest
                self.step(one)
            self.at(self.now + 1.0, lambda: self.watch(one))

        self.at(max(one.read_at, self.now + 0.01), staged)

    def withdrawn(self, _one: Claimant) -> int:
        """Return what a watcher asks for while the workers read something newer."""
        return 0

    def request(
        self,
        one: Claimant,
        effect: Callable[[], None],
        done: Callable[[], None],
        failed: Callable[[], None],
        *,
        begins: Callable[[], None] | None = None,
        least: float = 0.0,
    ) -> None:
        """Ask the engine for something. It may do it after nobody waits for it any more, unless it has ended."""
        engine, life = one.engine, one.life
        slow = self.chance(0.1 if self.world.hang else 0.0)
        seconds = least + (self.draw.uniform(1, 20) if slow else self.draw.uniform(0.01, 0.3))
        when = max(self.now + seconds, one.hung)
        answered = when < self.now + HOOK_SECONDS

        def happen() -> None:
            if one.engine != engine:
                answer(failed)
            else:
                effect()
                if answered:
                    answer(done)

        def answer(how: Callable[[], None]) -> None:
            if one.life == life and answered:
                self.later(one, 0.01, how)

        if not engine:
            self.later(one, 0.01, failed)
            return
        if begins is not None:
            self.at(self.draw.uniform(self.now + least, when), lambda: begins() if one.engine == engine else None)
        self.at(when, happen)
        if not answered:
            self.later(one, HOOK_SECONDS, failed)

    def told(self, one: Claimant, engine: EngineState) -> None:
        """Let the process know how it went."""
        one.telling = False
        one.turns.engine_is(engine, one.clock(self.now))
        self.step(one)

    def account(self, one: Claimant, *, active: bool, turn: bool = True) -> None:
        """Note whether an engine serves: at most one does, and none without all its weights."""
        if one.active:
            one.held += self.now - one.since
        one.since = self.now
        if active and not one.active:
            self.alone(one)
            assert not one.half, f"{one.name} serves with half of its weights at {self.now:.3f}"
            assert not one.dropped, f"{one.name} serves without weights at {self.now:.3f}"
            self.switches += turn
            one.used += [self.now] * turn
        one.active = active

    def alone(self, one: Claimant) -> None:
        """Look whether no other engine uses the device."""
        others = [other.name for other in self.claimants if other.uses and other is not one]
        assert not others, f"{one.name} uses the device of {others} at {self.now:.3f}"

    def crash(self, one: Claimant) -> None:
        """Let an engine end by itself; its guard goes with it, and comes back."""
        self.end(one)
        self.look(one, self.draw.choice([0.1, 5.0]))

    def hang(self, one: Claimant) -> None:
        """Stop an engine for some time."""
        one.hung = self.now + self.draw.choice([2.0, 15.0])

    def end(self, one: Claimant) -> None:
        """End an engine."""
        one.engine = 0
        self.account(one, active=False)
        one.half = one.dropped = False
        one.has, one.staged, one.read_at = 0, None, 0.0
        if one.turns.engine is EngineState.RUNNING:
            one.turns.engine_is(EngineState.UNKNOWN, one.clock(self.now))

    # The guard.

    def give(self, one: Claimant, permit: Permit) -> None:
        """Write a permit. The guard looks soon, and when the permit runs out."""
        one.permit = replace(permit, order=one.permit.order + 1)
        self.look(one, self.draw.uniform(0, GUARD_SECONDS))
        if one.permit.allows:
            end = max(self.now, one.when(one.permit.until))
            self.look(one, end - self.now + self.draw.uniform(1e-6, GUARD_SECONDS))

    def look(self, one: Claimant, seconds: float) -> None:
        """Let the guard look."""

        def then() -> None:
            shown = one.clock(self.now)
            if one.engine and must_end(one.permit, shown):
                self.end(one)
            elif not one.engine and may_start(one.permit, shown):
                one.engines += 1
                one.engine = one.engines
                one.hung = 0.0
                self.account(one, active=True)
            state = ENGINE if one.engine else IDLE
            one.sight = Sight(state, one.permit.order, shown, float(one.engine))

        self.at(self.now + seconds, then)


def described(device: Device) -> dict[int, tuple[int, float]]:
    """Return what a device's history has, for messages."""
    return {one.name: (len(one.used), round(one.held, 1)) for one in device.claimants}


def play(number: int, decides: type[Turns] = Turns, device: type[Device] = Device) -> Device:
    """Play a run of any kind.

    Raises:
        AssertionError: two engines used the device at once, one served without all of its weights, or one got no turn
            or not the newest weights.
    """
    draw = random.Random(number)
    world = any_world(draw)
    if number % 2 == 0:  # the others train adapters
        world = replace(world, versions=(1.0, 5.0)[number // 2 % 2], drops=number % 3 == 0)
    run = device(world, draw, decides)
    run.play(until=world.faults or 20.0)
    turns = [len(one.used) for one in run.claimants]
    # What went wrong may have its effect 20 s later.
    run.play(until=max(run.now, world.faults + 20.0))
    # Each may have been stopped to the end, and then the others wait until it counts as lost.
    end = run.now + 25 + 10 * world.claimants
    while run.now < end and not all(
        len(one.used) > had and one.has == one.newest for one, had in zip(run.claimants, turns, strict=True)
    ):
        run.play(until=run.now + 2)
    for one, before in zip(run.claimants, turns, strict=True):
        assert len(one.used) > before, f"{one.name} got no turn: {described(run)}"
        assert one.has == one.newest, f"{one.name} has version {one.has} of {one.newest}: {described(run)}"
    if not world.faults:
        assert run.overtaken == 0
    return run
