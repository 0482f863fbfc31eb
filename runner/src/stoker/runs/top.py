"""A view of all runs that renews itself: on a terminal in place, elsewhere one table after another."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, count

from stoker.contract.words import say
from stoker.runs import show, words
from stoker.runs.client import Client
from stoker.runs.errors import UnreachableError
from stoker.runs.read import read_runs
from stoker.runs.run import Run, moment

_KEPT = 60
# A run that is over stays in view for so long.
_OVER_SECONDS = 3600


class Losses:
    """The losses of runs, as far as this view has seen them: the cluster knows the newest only."""

    def __init__(self) -> None:
        self.of: dict[str, deque[float]] = {}
        self._steps: dict[str, float] = {}

    def add(self, runs: Iterable[Run]) -> None:
        """Record what runs reported since the last time."""
        for run in runs:
            loss = run.progress.metric("loss", "reward") if run.progress else None
            step = run.progress.metric("step") if run.progress else None
            if loss is None or (step is not None and self._steps.get(run.uid) == step):
                continue
            self.of.setdefault(run.uid, deque(maxlen=_KEPT)).append(loss)
            self._steps[run.uid] = step if step is not None else -1.0


def in_view(runs: Iterable[Run], now: datetime) -> list[Run]:
    """Return the runs that go on, and those that ended lately."""
    found = []
    for run in runs:
        ended = moment(run.ended)
        if ended is None or (now - ended).total_seconds() < _OVER_SECONDS:
            found.append(run)
    return found


@dataclass(frozen=True, slots=True)
class RunsView:
    """What there is to see after one look at the cluster.

    Attributes:
        time: when it was.
        read: when the runs were read: earlier, if the cluster did not answer this time.
        runs: the runs in view.
        problem: why the cluster did not answer; empty if it did.
    """

    time: datetime
    read: datetime
    runs: Sequence[Run]
    problem: str = ""


def top(client: Client, everywhere: bool, seconds: float, times: int | None, *, as_json: bool = False) -> None:
    """Show runs until the user ends it.

    Args:
        client: the cluster.
        everywhere: True for all namespaces.
        seconds: between two looks.
        times: how often to look; None for ever.
        as_json: True to print each look as a line of JSON.

    Raises:
        ClusterError: the runs cannot be read; a cluster that does not answer later is part of the view.
    """
    looks = _looks(client, everywhere, seconds, times)
    if as_json:
        for look in looks:
            found = {"problem": look.problem} if look.problem else {"runs": look.runs}
            show.print_json_line({"time": look.time.isoformat(), **found})
        return
    views = _views(looks, everywhere)
    # What is wrong with the first look is said before the view.
    first = next(views)
    if show.on_terminal():
        with show.live() as live:
            for table, problem in chain([first], views):
                live.update(show.screen(table, problem), refresh=True)
        return
    show.print_table(first[0])
    for table, problem in views:
        show.print_lines(["", *filter(None, [problem])])
        show.print_table(table)


def _looks(client: Client, everywhere: bool, seconds: float, times: int | None) -> Iterator[RunsView]:
    """Look at the cluster again and again; what the user may not see is said once."""
    newest: RunsView | None = None
    for _ in count() if times is None else range(times):
        if newest:
            time.sleep(seconds)
        now = datetime.now(UTC)
        try:
            runs, hidden = read_runs(client, everywhere)
        except UnreachableError as error:
            if newest is None:
                raise
            yield replace(newest, time=now, problem=error.message)
            continue
        if newest is None:
            for line in hidden:
                say(line)
        newest = RunsView(now, now, in_view(runs, now))
        yield newest


def _views(looks: Iterable[RunsView], everywhere: bool) -> Iterator[tuple[words.Table, str]]:
    """Yield the table of each look, and what is wrong with it."""
    losses = Losses()
    for look in looks:
        problem = ""
        if look.problem:
            problem = f"this is {words.duration((look.time - look.read).total_seconds())} old: {look.problem}"
        else:
            losses.add(look.runs)
        yield words.top_of(look.runs, losses.of, look.read, everywhere), problem
