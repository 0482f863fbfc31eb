"""Has the groups of a run written ahead of the trainer, in a thread of its own, and hands out one batch per step.

The schedule decides what to start and what to train, under one lock. The trainer's thread calls `take` and `evaluate`,
the publisher's calls `usable`, the engine's own runs the writer. A group that ends in anything but its samples ends the
run: no prompt is dropped, and none is scored on fewer samples.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.rollouts.depth import Depth
from stoker.rollouts.lag import Lag
from stoker.rollouts.records import Batch, Bounds, Group, Sample, Writer, Written
from stoker.rollouts.schedule import GroupStart, Places, Schedule, Shuffle, TrainedOrdinals, seed_of, shuffled
from stoker.rollouts.state import RolloutState
from stoker.rollouts.thread import WriterThread

# Seconds between two reasons while the trainer waits.
_PULSE = 1.0
# Groups of an evaluation in the samplers' hands at the same time.
_JUDGED_AT_ONCE = 256

Rows = Sequence[Mapping[str, Any]]
Waiting = Callable[[str], None]


class Engine:
    """The rollouts of one run, on rank 0."""

    def __init__(
        self,
        rows: Rows,
        bounds: Bounds,
        writer: Writer,
        *,
        seed: int,
        steps: int,
        state: RolloutState | None = None,
        wait_seconds: float,
        order: Shuffle | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing runs before `start`.

        Args:
            rows: the data, one prompt each; at least one.
            bounds: what the schedule keeps to.
            writer: writes the groups; called in the engine's thread alone.
            seed: of the order of rows and of all answers.
            steps: optimizer steps of the whole run, those before a resume included.
            state: what the checkpoint kept, if the run resumes.
            wait_seconds: how long to wait while no group is finished and no version arrives.
            order: the rows of an epoch in the order of training. Without it, the seed shuffles them.
            clock: the time in seconds.

        Raises:
            RunError: the checkpoint is of another run (code 78).
        """
        if state is not None:
            state.require(batch=bounds.batch, rows=len(rows), seed=seed)
        self._rows = rows
        self._places = Places(len(rows), order or shuffled(len(rows), seed))
        self._bounds = bounds
        self._writer = writer
        self._seed = seed
        self._wait_seconds = wait_seconds
        self._clock = clock
        trained = TrainedOrdinals(state.frontier, state.above) if state else None
        self._schedule = Schedule(bounds, steps, step=state.step if state else 0, trained=trained)
        self._depth: Depth | None = None
        if bounds.depth is None:
            self._depth = Depth(bounds.deepest, state.depth if state else 1)
            self._schedule.depth = self._depth.value
        self._lag = Lag(bounds.publish_every)
        # Reentrant, because a signal's handler may stop the engine in the thread that has it.
        self._changed = threading.Condition(threading.RLock())
        # Since when each group is being written.
        self._writing: dict[GroupStart, float] = {}
        # What is written and not in a batch yet, and the versions of all groups that are not in a batch yet.
        self._written: dict[int, Written] = {}
        self._versions: dict[int, int] = {}
        # The rows of an evaluation, by their numbers in the data.
        self._judged: Mapping[int, Mapping[str, Any]] = {}
        self._to_judge: deque[GroupStart] = deque()
        self._judging = 0
        self._verdicts: dict[int, Written] = {}
        self._pinned: int | None = None
        self._failure: RunError | None = None
        self._stopped = False
        # When something was written or a version came last, to tell slow samplers from those that do nothing.
        self._came_at = clock()
        self._taken_at: float | None = None
        # Since when nothing is being written, and for how long before, since the last batch.
        self._idle_since: float | None = None
        self._idle = 0.0
        self._thread = WriterThread(self._write, self._ended)

    def start(self, version: int) -> None:
        """Begin to write.

        Args:
            version: the newest version that every ready replica has.
        """
        self._thread.start()
        self.usable(version)

    def usable(self, version: int) -> None:
        """Note that every ready replica has a version. Any thread may call this."""
        with self._changed:
            self._schedule.usable(version)
            self._lag.come(version, self._clock())
            self._advance()

    def in_use(self) -> frozenset[int]:
        """Return the versions that samplers must keep: those that groups name, and the newest. Any thread may call."""
        with self._changed:
            named = [start.version for start in self._writing]
            return frozenset(one for one in (*named, self._pinned, self._schedule.version) if one is not None)

    def take(self, step: int, waiting: Waiting) -> Batch:
        """Return the batch of a step, once it is complete.

        Args:
            step: optimizer steps done, which says that the batch before is trained.
            waiting: called about once a second with the reason. What it raises ends the wait; the step can be asked for
                again.

        Raises:
            RunError: a group could not be written; nothing came for too long, or the engine was stopped (code 75); this
                is not the next step (code 70).
        """
        began = self._clock()
        with self._changed:
            comes = self._lag.ask(step, self._schedule.version, began)
            self._schedule.begin(step, version_comes=comes)
            self._dispatch()
        reason = self._wait(self._schedule.complete, self._reason, waiting)
        with self._changed:
            groups = tuple(self._written.pop(ordinal) for ordinal in self._schedule.take() or ())
            for group, _ in groups:
                del self._versions[group.ordinal]
            waited = self._adapt(began)
            self._dispatch()
            idle, self._idle = self._idle, 0.0
            return Batch(
                step=step,
                groups=groups,
                staleness=tuple(step - min(sample.oldest for sample in samples) for _, samples in groups),
                waited=waited,
                reason=reason,
                depth=self._schedule.depth,
                outstanding=len(self._schedule.outstanding),
                idle=idle,
            )

    def evaluate(
        self, rows: Mapping[int, Mapping[str, Any]], version: int, waiting: Waiting = lambda reason: None
    ) -> list[Written]:
        """Return each row's group with its samples, which are not trained. Training groups are written meanwhile.

        The same rows have the same ordinals and seeds in each evaluation.

        Args:
            rows: the data to judge by, one prompt each, by their numbers in the data.
            version: the policy to judge: the newest, or one that is about to arrive.
            waiting: as for `take`.

        Raises:
            RunError: as for `take`.
        """
        with self._changed:
            self._pinned, self._judged = version, rows
        try:
            self._wait(partial(self._has, version), partial(self._reason_of_version, version), waiting)
            with self._changed:
                self._to_judge.extend(GroupStart(-1 - row, version, version) for row in rows)
                self._dispatch()
            self._wait(lambda: len(self._verdicts) == len(rows), self._reason_of_evaluation, waiting)
            with self._changed:
                return [self._verdicts[-1 - row] for row in rows]
        finally:
            self._end_evaluation()

    def state(self) -> RolloutState:
        """Return what a checkpoint must keep once the step of the last `take` is done."""
        with self._changed:
            schedule = self._schedule
            return RolloutState(
                step=schedule.step,
                batch=self._bounds.batch,
                rows=len(self._rows),
                seed=self._seed,
                frontier=schedule.trained.frontier,
                above=schedule.trained.above,
                in_flight=tuple(sorted(self._versions.items())),
                version=schedule.version,
                depth=schedule.depth,
                staleness=self._bounds.staleness,
            )

    def stop(self) -> None:
        """Cancel everything that is being written, and end the thread, within a second. A waiting `take` raises."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.stop()

    def _wait(self, complete: Callable[[], bool], reason: Callable[[], str], waiting: Waiting) -> str:
        """Wait until something is complete; return what was waited for last, empty if it was complete at once."""
        said = ""
        began = self._clock()
        while True:
            with self._changed:
                if self._over() or complete():
                    break
                said = reason()
                left = self._wait_seconds - (self._clock() - max(began, self._came_at))
                if left <= 0:
                    raise RunError(
                        ExitCode.STOPPED,
                        f"{said}; nothing came for {self._wait_seconds:g} s: look at the samplers' logs, or write a "
                        "larger `--rollout_wait_seconds`",
                    )
                if self._changed.wait_for(lambda: self._over() or complete(), min(_PULSE, left)):
                    break
                if left < _PULSE:
                    continue
                said = reason()
            waiting(said)
        if self._failure:
            raise self._failure
        if self._stopped:
            raise RunError(ExitCode.STOPPED, "the rollouts were stopped")
        return said

    def _over(self) -> bool:
        return self._stopped or self._failure is not None

    def _has(self, version: int) -> bool:
        return self._schedule.version is not None and self._schedule.version >= version

    def _reason(self) -> str:
        due, ordinals = self._schedule.awaited()
        step, batch = self._schedule.step, self._bounds.batch
        if not ordinals:
            return self._reason_of_version(step - self._bounds.staleness)
        oldest = f"the oldest for {self._age(ordinals):.0f} s"
        if due:
            groups = "1 group at its deadline" if len(ordinals) == 1 else f"{len(ordinals)} groups at their deadline"
            return f"waiting for samplers: {groups}, {oldest}"
        return f"waiting for samplers: {len(self._written)} of {batch} groups are written, {oldest}"

    def _reason_of_version(self, version: int) -> str:
        newest = "none" if self._schedule.version is None else self._schedule.version
        return f"waiting for version {max(version, 0)} on every ready sampler: the newest is {newest}"

    def _reason_of_evaluation(self) -> str:
        judged, rows = len(self._verdicts), len(self._judged)
        oldest = self._age([start.ordinal for start in self._writing if start.ordinal < 0])
        return f"waiting for samplers: {judged} of {rows} rows are evaluated, the oldest for {oldest:.0f} s"

    def _age(self, ordinals: Iterable[int]) -> float:
        """Return for how many seconds the oldest of some groups is being written."""
        since = {start.ordinal: since for start, since in self._writing.items()}
        now = self._clock()
        return now - min((since.get(ordinal, now) for ordinal in ordinals), default=now)

    def _adapt(self, began: float) -> float:
        """Choose the depth by how long this batch was waited for; return the seconds."""
        now = self._clock()
        if self._depth and self._taken_at is not None:
            self._schedule.depth = self._depth.record(now - began, now - self._taken_at)
        self._taken_at = now
        return now - began

    def _advance(self) -> None:
        """Go on after something has come."""
        self._came_at = self._clock()
        self._dispatch()
        self._changed.notify_all()

    def _dispatch(self) -> None:
        """Start what may be started."""
        if self._over():
            return
        starts = self._schedule.admit()
        self._versions.update((start.ordinal, start.version) for start in starts)
        while self._to_judge and self._judging < _JUDGED_AT_ONCE:
            starts.append(self._to_judge.popleft())
            self._judging += 1
        if starts:
            self._writing.update(dict.fromkeys(starts, self._clock()))
            self._thread.launch(starts)
        now = self._clock()
        self._idle += 0.0 if self._idle_since is None else now - self._idle_since
        self._idle_since = None if self._writing else now

    async def _write(self, start: GroupStart) -> Written:
        group = self._group(start)
        samples = await self._writer.write(group, partial(seed_of, self._seed, start.ordinal))
        if flaw := _flaw(group, samples):
            raise RunError(ExitCode.CRASHED, f"group {group.ordinal} (row {group.row}) {flaw}")
        return group, samples

    def _group(self, start: GroupStart) -> Group:
        if start.ordinal < 0:
            epoch, row, columns = -1, -1 - start.ordinal, self._judged[-1 - start.ordinal]
        else:
            epoch, row = self._places.find(start.ordinal)
            columns = self._rows[row]
        return Group(start.ordinal, epoch, row, columns, start.version, start.deadline)

    def _ended(self, start: GroupStart | None, outcome: Written | BaseException) -> None:
        """Note what became of a group; called in the thread of the writer."""
        with self._changed:
            if start is not None and self._writing.pop(start, None) is None:
                return
            if start is None or isinstance(outcome, BaseException):
                self._fail(start, outcome)
            elif start.ordinal < 0:
                self._verdicts[start.ordinal] = outcome
                self._judging -= 1
            else:
                self._written[start.ordinal] = outcome
                self._schedule.finish(start.ordinal)
            self._advance()

    def _fail(self, start: GroupStart | None, error: object) -> None:
        if self._failure is not None:
            return
        what = "the rollouts" if start is None else f"group {start.ordinal}"
        if isinstance(error, RunError):
            self._failure = error
        elif isinstance(error, asyncio.CancelledError):
            self._failure = RunError(ExitCode.CRASHED, f"{what} was cancelled, though nothing asked for it")
        else:
            self._failure = RunError(ExitCode.CRASHED, f"{what} ended with {type(error).__name__}: {error}")
            self._failure.__cause__ = error if isinstance(error, BaseException) else None

    def _end_evaluation(self) -> None:
        """Forget the evaluation, and cancel what is left of it."""
        with self._changed:
            left = [start for start in self._writing if start.ordinal < 0]
            for start in left:
                del self._writing[start]
            self._to_judge.clear()
            self._verdicts.clear()
            self._judging = 0
            self._pinned, self._judged = None, {}
            if left and not self._stopped:
                self._thread.abandon(left)


def _flaw(group: Group, samples: Sequence[Sample]) -> str:
    """Return what is wrong with a group's samples; empty if they can be trained."""
    if not samples:
        return "has no samples"
    for index, sample in enumerate(samples):
        lengths = len(sample.completion_ids), len(sample.mask), len(sample.logprobs)
        if len(set(lengths)) > 1:
            return f"has {lengths[0]} tokens, {lengths[1]} masks and {lengths[2]} log-probabilities in sample {index}"
        if not group.version <= sample.oldest <= sample.newest:
            return (
                f"names version {group.version}, but sample {index} was written by versions {sample.oldest} to "
                f"{sample.newest}"
            )
    return ""
