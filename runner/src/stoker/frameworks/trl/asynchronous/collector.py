"""Rank 0's side of the rollouts: the engine that has samples written, and the publisher that gives it versions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from stoker.contract.exits import RunError
from stoker.contract.words import say
from stoker.frameworks.trl.asynchronous.metrics import Lengths
from stoker.frameworks.trl.asynchronous.rows import Row
from stoker.rollouts.publish import After
from stoker.rollouts.records import Batch, Written
from stoker.rollouts.state import RolloutState

Waiting = Callable[[str], None]
Prompts = Sequence[tuple[int, ...]]
# Has samplers answer prompts with a version, and returns what that version wrote alone; ends when it is told to.
Probe = Callable[[int, Prompts, Callable[[], bool]], Sequence[Row]]
_SECONDS_BETWEEN_SIGNS = 1.0


class TakesBatches(Protocol):
    """The engine, as `stoker.rollouts.engine.Engine` is one."""

    def start(self, version: int) -> None:
        """Begin to write samples with a version."""

    def usable(self, version: int) -> None:
        """Use a version from now on."""

    def take(self, step: int, waiting: Waiting) -> Batch:
        """Return what a step trains; blocks."""

    def evaluate(self, rows: Mapping[int, Mapping[str, Any]], version: int, waiting: Waiting) -> Sequence[Written]:
        """Have a version answer rows that are not trained, by their numbers; blocks."""

    def state(self) -> RolloutState:
        """Return what a checkpoint keeps."""

    def stop(self) -> None:
        """End at once."""


class PublishesVersions(Protocol):
    """The publisher, as `stoker.rollouts.publish.Publisher` is one."""

    def make_room(self) -> None:
        """Let go of what waits to be written, because a newer version is about to be made."""

    def publish(self, version: int, job: Any, *, needed: bool, after: After | None) -> None:
        """Write a version and give it to the samplers; returns at once."""

    def failed(self) -> RunError | None:
        """Return why versions no longer arrive; None if they do."""

    def close(self) -> None:
        """End at once."""


class Collector:
    """What rank 0 asks for batches.

    Args:
        engine: the engine, not started.
        publisher: makes the publisher, from what it must call when a version can be used.
        figures: numbers about the samplers, by name, such as how many are ready.
        close: called at the end.
        lengths: of the answers that were written; those that are trained are counted here.
        based: samplers have version 0 from the start, as the base model.
        probe: asks samplers for what one version wrote alone, where a version changes under their answers.
    """

    def __init__(
        self,
        engine: TakesBatches,
        publisher: Callable[[Callable[[int], None]], PublishesVersions],
        figures: Callable[[], Mapping[str, float]] = dict,
        close: Callable[[], None] = lambda: None,
        lengths: Lengths | None = None,
        *,
        based: bool = True,
        probe: Probe | None = None,
    ) -> None:
        self._engine = engine
        self._probe = probe
        self._probed: tuple[Row, ...] = ()
        self._based = based
        self._newest = -1
        self._arrived = threading.Condition()
        self._started = False
        self._publisher = publisher(self._usable)
        self._figures = figures
        self._close = close
        self._lengths = lengths

    def begin(self, step: int, waiting: Waiting) -> None:
        """Begin to write samples for a step, once its version can be used."""
        while (step or not self._based) and not self._has(step):
            self._attentive(waiting)(f"waiting for samplers: they load version {step}")
        with self._arrived:
            self._engine.start(max(step, self._newest))
            self._started = True

    def make_room(self) -> None:
        """Let go of versions that wait to be written, because a newer one is about to be made."""
        self._publisher.make_room()

    def publish(self, version: int, job: Any, *, needed: bool = False, prompts: Prompts = ()) -> None:
        """Give a version to the samplers; returns at once.

        Args:
            version: its number.
            job: what the publisher writes.
            needed: it must not be left out, however late it is.
            prompts: what each sampler is to answer with this version alone, for `probed`.
        """
        probe = self._probe

        def after(stop: Callable[[], bool]) -> None:
            if probe is not None:
                rows = tuple(probe(version, prompts, stop))
                with self._arrived:
                    self._probed = rows

        self._publisher.publish(version, job, needed=needed, after=after if prompts else None)

    def probed(self) -> tuple[Row, ...]:
        """Return what one version wrote alone, because it was asked for, since the last call."""
        with self._arrived:
            rows, self._probed = self._probed, ()
        return rows

    def take(self, step: int, waiting: Waiting) -> Batch:
        """Return what a step trains."""
        batch = self._engine.take(step, self._attentive(waiting))
        if self._lengths is not None:
            self._lengths.trained(batch.groups)
        return batch

    def evaluate(self, rows: Mapping[int, Mapping[str, Any]], version: int, waiting: Waiting) -> Sequence[Written]:
        """Have a version answer rows that are not trained, by their numbers."""
        return self._engine.evaluate(rows, version, self._attentive(waiting))

    def state(self) -> RolloutState:
        """Return what a checkpoint keeps."""
        return self._engine.state()

    def figures(self) -> dict[str, float]:
        """Return numbers about the samplers and their answers."""
        bias = {} if self._lengths is None else {"rollout/length_bias": self._lengths.bias}
        return {**self._figures(), **bias}

    def stop(self) -> None:
        """End everything at once."""
        for end in (self._engine.stop, self._publisher.close, self._close):
            try:
                end()
            except Exception as error:  # noqa: BLE001 - the run has ended, and the others must end too
                say(f"the rollouts did not end well: {type(error).__name__}: {error}")

    def _has(self, version: int) -> bool:
        """Return whether a version can be used, after a second at most."""
        with self._arrived:
            return self._arrived.wait_for(lambda: self._newest >= version, _SECONDS_BETWEEN_SIGNS)

    def _usable(self, version: int) -> None:
        with self._arrived:
            self._newest = max(self._newest, version)
            self._arrived.notify_all()
            if self._started:
                self._engine.usable(version)

    def _attentive(self, waiting: Waiting) -> Waiting:
        """Return what also ends a wait for versions that can no longer arrive."""

        def attentive(reason: str) -> None:
            error = self._publisher.failed()
            if error is not None:
                raise error
            waiting(reason)

        return attentive
