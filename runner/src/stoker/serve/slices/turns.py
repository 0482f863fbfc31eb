"""Decides for one engine when to ask for the device, when to use it, and when to stop. Pure.

Times are seconds of this machine's own clock. A claimant counts its own deadline from before it asked for more time,
and that of another from when it saw the other's last sign of life. So no two clocks are ever compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import inf

from stoker.contract.exits import ExitCode, RunError
from stoker.serve.slices.record import Record, Ticket

# How much faster one machine's clock may be than another's.
_DRIFT = 0.02


@dataclass(frozen=True, slots=True)
class Rules:
    """What the claimants of a device keep to.

    Attributes:
        duration: seconds without a sign of life after which a claimant counts as lost.
        stop: seconds since the last renewal after which the guard ends the engine.
        suspend: seconds since the last renewal after which the engine parks by itself.
        renew: seconds between two signs of life.
        poll: seconds between two looks of the first in the queue.
        quantum: seconds after which the engine lets others use the device.
    """

    duration: float = 10.0
    stop: float = 8.0
    suspend: float = 5.0
    renew: float = 2.0
    poll: float = 0.25
    quantum: float = 30.0

    def __post_init__(self) -> None:
        """Check that an engine stops before another starts.

        Raises:
            RunError: it may not (64).
        """
        margin = self.duration * (1 - _DRIFT) - self.stop * (1 + _DRIFT)
        if not (0 < 2 * self.renew <= self.suspend < self.stop and margin > 0 and self.poll > 0 and self.quantum > 0):
            raise RunError(
                ExitCode.USAGE,
                f"a Lease of {self.duration:g} s that is renewed each {self.renew:g} s leaves no time to stop the "
                f"engine: choose 2 x renew <= {self.suspend:g} s < {self.stop:g} s < {self.duration:g} s, or leave the "
                "defaults",
            )

    @classmethod
    def within(cls, duration: float, quantum: float) -> Rules:
        """Return rules for a duration of the Lease, in the proportions of the defaults.

        Raises:
            RunError: a number is not positive (64).
        """
        usual = cls()
        part = duration / usual.duration
        return cls(
            duration=duration,
            stop=usual.stop * part,
            suspend=usual.suspend * part,
            renew=usual.renew * part,
            poll=usual.poll * part,
            quantum=quantum,
        )


class EngineState(Enum):
    """What is known of the engine."""

    UNKNOWN = "unknown"
    PARKED = "parked"
    STARTING = "starting"
    RUNNING = "running"
    RELOADING = "reloading"
    PARKING = "parking"


@dataclass(frozen=True, slots=True)
class ReadLease:
    """Read the Lease."""


@dataclass(frozen=True, slots=True)
class Write:
    """Write the Lease, unless it is no longer the version that was read.

    Attributes:
        record: what it shall say.
        version: what was read.
    """

    record: Record
    version: str


@dataclass(frozen=True, slots=True)
class Use:
    """Let the engine use the device.

    Attributes:
        term: number of this turn.
        until: when the guard must end the engine, unless that is put off.
    """

    term: int
    until: float


@dataclass(frozen=True, slots=True)
class Park:
    """Make sure that the engine does not use the device."""


@dataclass(frozen=True, slots=True)
class Reload:
    """Let the engine, which runs, pause, load the weights that it has read, and go on."""


@dataclass(slots=True)
class Wish:
    """What the engine needs.

    Attributes:
        device: it has work, or may get some.
        idle: it has no work at this moment.
        leave: it must not use the device, whoever waits.
        reload: it has read weights, to be loaded in its turn.
    """

    device: bool = True
    idle: bool = False
    leave: bool = False
    reload: bool = False


class Turns:
    """One claimant of a device.

    Args:
        me: who this is; no other process, now or earlier, has the same name.
        rules: what all claimants keep to.

    Attributes:
        wish: what the engine needs.
        engine: what is known of the engine.
        term: number of the turn that this claimant has; None if it has none.
        lost: how often a turn was lost, not given up.
    """

    def __init__(self, me: str, rules: Rules) -> None:
        self.me, self.rules = me, rules
        self.wish = Wish()
        self.engine = EngineState.UNKNOWN
        self.term: int | None = None
        self.lost = 0
        self._record, self._version = Record(), ""
        self._fresh = False  # nothing is known to have changed since the last look
        self._looked = self._sent = self._beaten = self._running = self._again = -inf
        self._leaving = False
        self._seen: dict[tuple[str, int], tuple[int, float, float]] = {}  # sign of life, seconds since, last look
        self._alive: tuple[Ticket, ...] = ()  # who waits, without those that are lost

    @property
    def until(self) -> float:
        """When the guard must end the engine; long ago without a turn."""
        return -inf if self.term is None else self._sent + self.rules.stop

    @property
    def waiting(self) -> bool:
        """Whether somebody else who is alive waits."""
        return any(one.holder != self.me for one in self._alive)

    @property
    def gone(self) -> bool:
        """Whether the Lease, as it was read last, has nothing of this claimant."""
        queued = any(one.holder == self.me for one in self._record.queue)
        return self._fresh and self.term is None and self._record.holder != self.me and not queued

    # What happened.

    def saw(self, record: Record, version: str, now: float) -> None:
        """Take an answer of the API: what the Lease says."""
        self._record, self._version, self._looked, self._fresh = record, version, now, True
        self._again = -inf
        self._witness(now)
        if self.term is not None and (record.holder, record.term) != (self.me, self.term):
            self._lose()

    def wrote(self, record: Record, version: str, sent: float, now: float) -> None:
        """Take an answer of the API: the Lease says what it was asked to.

        Args:
            record: what it says.
            version: its version.
            sent: when the API was asked.
            now: when it answered.
        """
        taken = record.holder == self.me and record.term == self._record.term + 1
        self.saw(record, version, now)
        # An answer that came too late is as good as none: the device may be somebody else's by now.
        if taken and now < sent + self.rules.suspend:
            self.term, self._leaving = record.term, False
        if record.holder == self.me and record.term == self.term:
            self._sent = max(self._sent, sent)
        if any(one.holder == self.me for one in record.queue):
            self._beaten = sent

    def refused(self) -> None:
        """Take an answer of the API: somebody else wrote the Lease first."""
        self._fresh = False

    def unanswered(self, now: float) -> None:
        """Take that the API did not answer: what was asked may have happened, or may happen yet."""
        self._fresh = False
        self._again = now + self.rules.poll

    def engine_is(self, engine: EngineState, now: float) -> None:
        """Take what the engine does now."""
        if engine is EngineState.UNKNOWN and self.engine in (EngineState.STARTING, EngineState.RELOADING):
            self._leaving = True  # another engine may do better with the device
        if engine is EngineState.RUNNING and self.engine is not EngineState.RELOADING:  # a reload makes no turn longer
            self._running = now
        self.engine = engine

    # What to do.

    def call(self, now: float) -> ReadLease | Write | None:
        """Return what to ask the API now, if nothing is being asked."""
        self._tick(now)
        if now < self._again:
            return None
        if not self._fresh:
            return ReadLease()
        record = self._wanted(now)
        if record is not None:
            return Write(record, self._version)
        return ReadLease() if self.term is None and now >= self._looked + self._interval() else None

    def act(self, now: float) -> Use | Park | Reload | None:
        """Return what to do with the engine now, if nothing is being done."""
        self._tick(now)
        if self.term is not None and not self._leaving and self._yields(now):
            self._leaving = True
        if self.engine is EngineState.PARKED and self.term is not None and not self._leaving:
            self.engine = EngineState.STARTING
            return Use(self.term, self.until)
        if self.engine is EngineState.UNKNOWN or (
            self.engine is EngineState.RUNNING and (self.term is None or self._leaving)
        ):
            self.engine = EngineState.PARKING
            return Park()
        if self.engine is EngineState.RUNNING and self.wish.reload:
            self.engine = EngineState.RELOADING
            return Reload()
        return None

    def pause(self, now: float) -> float:
        """Return for how many seconds there is nothing to do, if nothing happens."""
        due = [now + self.rules.renew, self._again]
        if self.term is not None:
            due += [self._sent + self.rules.renew, self._sent + self.rules.suspend]
            if self.engine is EngineState.RUNNING:
                due.append(self._running + self.rules.quantum)
        else:
            due.append(self._looked + self._interval())
        return max(0.0, min(one for one in due if one > now) - now)

    # How.

    def _tick(self, now: float) -> None:
        if self.term is not None and now >= self._sent + self.rules.suspend:
            self._lose()

    def _lose(self) -> None:
        self.term, self._leaving = None, False
        self.lost += 1

    def _yields(self, now: float) -> bool:
        if self.wish.leave:
            return True
        over = self.wish.idle or now >= self._running + self.rules.quantum
        return self.engine is EngineState.RUNNING and over and self.waiting

    def _wanted(self, now: float) -> Record | None:
        """Return what the Lease should say; None if it says so."""
        record, alive = self._record, self._alive
        others = tuple(one for one in alive if one.holder != self.me)
        mine = next((one for one in alive if one.holder == self.me), None)
        if self.term is not None and not (self._leaving and self.engine is EngineState.PARKED):
            if now < self._sent + self.rules.renew:
                return None
            return replace(record, beat=record.beat + 1, queue=others)
        asks = self.wish.device and not self.wish.leave and self.engine is EngineState.PARKED
        number = record.tickets + 1
        if record.holder == self.me:  # to be given back, or taken by a call whose answer came too late
            if self.engine is not EngineState.PARKED:
                return None
            self.term, self._leaving = None, False
            given = replace(record, holder="", beat=record.beat + 1, queue=others)
            return replace(given, tickets=number, queue=(*others, Ticket(self.me, number))) if asks else given
        if not asks:
            return None if mine is None else replace(record, queue=others)
        ahead = [one for one in others if mine is None or one.number < mine.number]
        if not ahead and (not record.holder or self._expired()):
            return replace(
                record, holder=self.me, term=record.term + 1, beat=0, duration=self.rules.duration, queue=others
            )
        if mine is None:
            return replace(record, tickets=number, queue=(*others, Ticket(self.me, number)))
        if now < self._beaten + self.rules.renew:
            return None
        beaten = replace(mine, beat=mine.beat + 1)
        return replace(record, queue=tuple(beaten if one is mine else one for one in alive))

    def _interval(self) -> float:
        """Return the seconds between two looks: who is next looks often, and who needs nothing does not look."""
        if not self.wish.device and not any(one.holder == self.me for one in self._record.queue):
            return inf
        first = next(iter(self._alive), None)
        return self.rules.poll if first is None or first.holder == self.me else self.rules.renew / 2

    def _witness(self, now: float) -> None:
        """Count for how long nobody has given a sign of life.

        Only time that this process was awake for counts: one that was stopped, or whose machine was, must not find at
        its first look that everybody is lost.
        """
        most = min(self.rules.renew, self.rules.duration - self.rules.stop)
        record = self._record
        signs = {(one.holder, -one.number): one.beat for one in record.queue}
        signs[record.holder, record.term] = record.beat
        seen = {}
        for key, beat in signs.items():
            before, silent, last = self._seen.get(key, (beat, 0.0, now))
            seen[key] = (beat, silent + min(now - last, most) if before == beat else 0.0, now)
        self._seen = seen
        self._alive = tuple(
            one
            for one in record.queue
            if one.holder == self.me or self._silent(one.holder, -one.number) < self.rules.duration
        )

    def _silent(self, holder: str, number: int) -> float:
        return self._seen.get((holder, number), (0, 0.0, 0.0))[1]

    def _expired(self) -> bool:
        record = self._record
        duration = record.duration or self.rules.duration
        return self._silent(record.holder, record.term) >= max(duration, self.rules.poll)
