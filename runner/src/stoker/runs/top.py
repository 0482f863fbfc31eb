"""A view of all runs that renews itself: on a terminal in place, elsewhere one table after another."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime

import click

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


def top(client: Client, everywhere: bool, seconds: float, times: int | None, *, as_json: bool = False) -> None:
    """Show runs until the user ends it.

    Args:
        client: the cluster.
        everywhere: True for all namespaces.
        seconds: between two looks.
        times: how often to look; None for ever.
        as_json: True to print each look as a line of JSON.

    Raises:
        ClusterError: the runs cannot be read at first; later, the view says so and goes on.
    """
    if as_json:
        for count in _counted(times):
            if count:
                time.sleep(seconds)
            now = datetime.now(UTC)
            runs, hidden = read_runs(client, everywhere)
            if not count:
                _tell(hidden)
            show.print_json_line({"time": now.isoformat(), "runs": in_view(runs, now)})
        return
    losses = Losses()
    table, hidden = _look(client, everywhere, losses)
    _tell(hidden)
    if not show.on_terminal():
        for count in _counted(times):
            if count:
                time.sleep(seconds)
                click.echo()
                table = _again(client, everywhere, losses, table)
            show.print_table(table)
        return
    with show.live() as live:
        for count in _counted(times):
            if count:
                time.sleep(seconds)
                table = _again(client, everywhere, losses, table)
            live.update(show.rich_table(table), refresh=True)


def _look(client: Client, everywhere: bool, losses: Losses) -> tuple[words.Table, list[str]]:
    """Return the view, and what the user may not see."""
    now = datetime.now(UTC)
    runs, hidden = read_runs(client, everywhere)
    seen = in_view(runs, now)
    losses.add(seen)
    return words.top_of(seen, losses.of, now, everywhere), hidden


def _tell(hidden: Iterable[str]) -> None:
    for line in hidden:
        say(line)


def _again(client: Client, everywhere: bool, losses: Losses, before: words.Table) -> words.Table:
    try:
        return _look(client, everywhere, losses)[0]
    except UnreachableError as error:
        say(error.message)
        return before


def _counted(times: int | None) -> Iterable[int]:
    count = 0
    while times is None or count < times:
        yield count
        count += 1
