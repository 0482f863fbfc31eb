"""How far samplers work ahead of the trainer: the fewest batches that hide the wait for them, pure."""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import islice
from statistics import fmean, median

# Shares of a step's time that the trainer waits. Between the two the depth stays, so that it does not swing.
_SHOWS = 0.05
_HIDDEN = 0.02
# A wait so long that it shows in as many steps as batches are started together: often only one of these waits.
_PLAIN = 0.2
# Steps to look at: to see what has plainly helped, to see whether the wait shows, to judge what a change has done.
_FEW = 4
_SOME = 8
_MANY = 16
# Parts of the time of a step to which a depth must bring it to have helped: after few steps, after many.
_PLAINLY_HELPED = 0.8
_HELPED = 0.95
# Steps until what failed is tried again at most. Each failure doubles them.
_LONGEST = 256


class Depth:
    """Finds the depth, one step of training at a time.

    It goes deeper while the wait shows and going deeper makes steps shorter, and goes back when the wait is hidden.
    Where samplers are too slow at any depth, a larger one would make samples older and nothing faster.

    Attributes:
        value: the depth to use.
    """

    def __init__(self, deepest: int, start: int = 1) -> None:
        """Begin at a depth.

        Args:
            deepest: the largest depth that the bound on staleness allows.
            start: the first one.
        """
        self._deepest = deepest
        # With nothing under way during training, each step waits for all of its samples.
        self._least = min(1, deepest)
        self.value = max(self._least, min(start, deepest))
        # Seconds waited and not waited, of the latest steps at this depth.
        self._steps: deque[tuple[float, float]] = deque(maxlen=_LONGEST)
        # Steps whose batches were started at the depth before.
        self._skip = 0
        self._now = 0
        # The depth before and the seconds of a step at it, until it is known whether this one helps.
        self._before: tuple[int, float] | None = None
        # True after going back, until the wait shows again.
        self._back = False
        # Per depth: steps to look at before going back from it, and before going deeper once more.
        self._patience: defaultdict[int, int] = defaultdict(lambda: _MANY)
        self._hold: defaultdict[int, int] = defaultdict(lambda: _MANY)
        self._held_until: dict[int, int] = {}

    def record(self, waited: float, seconds: float) -> int:
        """Note a step and return the depth to use from now on.

        Args:
            waited: seconds that the trainer waited for the step's batch.
            seconds: of the whole step, the wait included.
        """
        self._now += 1
        if self._skip:
            self._skip -= 1
            return self.value
        self._steps.append((waited, seconds - waited))
        if self._before is None or self._is_judged(*self._before):
            self._choose()
        return self.value

    def _is_judged(self, back: int, before: float) -> bool:
        """Find out whether this depth helps; return False while nobody knows."""
        share, seconds = self._measure(_MANY)
        count = len(self._steps)
        hidden = count >= _SOME and share <= _SHOWS
        if not hidden and (count < _FEW or seconds > _PLAINLY_HELPED * before):
            if count < _MANY:
                return False
            if seconds > _HELPED * before:
                self._held_until[back] = self._now + self._hold[back]
                self._hold[back] = min(2 * self._hold[back], _LONGEST)
                self._go(back)
        self._before = None
        return True

    def _choose(self) -> None:
        count = len(self._steps)
        share, seconds = self._measure(_SOME)
        if share > _SHOWS and (count >= _SOME or (count > self.value and share > _PLAIN)):
            if self.value < self._deepest and self._now >= self._held_until.get(self.value, 0):
                if self._back:
                    self._patience[self.value + 1] = min(2 * self._patience[self.value + 1], _LONGEST)
                self._back = False
                self._before = (self.value, seconds)
                self._go(self._deeper(share))
        elif self.value > self._least and count >= (many := self._patience[self.value]) and self._hidden(many):
            self._back = True
            self._go(self.value - 1)

    def _deeper(self, share: float) -> int:
        """Return the depth to try: the least that hides the wait, if a batch takes as long at any depth, as tools do.

        A batch is started `value` steps before it is asked for, and comes when these and the wait are over. That time,
        counted in steps without a wait, is the depth, rounded down: another step deeper is soon made. Where this has
        failed, batches take longer the more there are, and the next depth is tried.

        Args:
            share: of a step's time that the trainer waits.
        """
        if self._hold[self.value] > _MANY:
            return self.value + 1
        ahead = self.value + (self.value + 1) * share / max(1 - share, _SHOWS)
        return min(self._deepest, max(self.value + 1, int(ahead)))

    def _measure(self, steps: int) -> tuple[float, float]:
        """Return the share that the trainer waited of the latest steps, and the seconds of such a step."""
        latest = list(islice(reversed(self._steps), steps))
        if not latest:
            return 0.0, 0.0
        waited = fmean(waited for waited, _ in latest)
        # Evaluations and checkpoints between two batches are rare and long: they say nothing about samplers.
        seconds = waited + median(trained for _, trained in latest)
        return (waited / seconds if seconds else 0.0), seconds

    def _hidden(self, steps: int) -> bool:
        return self._measure(steps)[0] < _HIDDEN

    def _go(self, value: int) -> None:
        self.value = value
        self._steps.clear()
        self._skip = value
