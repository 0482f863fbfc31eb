"""Prints tables and lines: with rich on a terminal, as plain text elsewhere, and as JSON where asked."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass, replace
from typing import Any

import click

from stoker.contract.secrets import hidden_json, hide
from stoker.contract.words import printable, say
from stoker.runs.errors import NotInstalledError
from stoker.runs.words import Table, size_of

_STYLES = {
    "Running": "green",
    "Complete": "blue",
    "Failed": "red",
    "Pending": "yellow",
    "Queued": "yellow",
    "Restarting": "yellow",
    "Preparing": "cyan",
    "Stopped": "dim",
    "Stopping": "dim",
    "Deleting": "dim",
}
# Below this width of a terminal, a download shows its percentage in place of bytes and speed.
_WIDE, _SHORT_BAR = 80, 10


def on_terminal() -> bool:
    """Return whether a person looks at the output."""
    return sys.stdout.isatty()


def print_json(value: Any) -> None:
    """Print values, dataclasses too, as JSON."""
    click.echo(hidden_json(_plain(value), indent=2))


def print_json_line(value: Any) -> None:
    """Print values, dataclasses too, as one line of JSON."""
    click.echo(hidden_json(_plain(value)))


def print_table(table: Table) -> None:
    """Print a table."""
    if on_terminal():
        console().print(rich_table(table))
    else:
        print_lines(table.plain())


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names and texts, a line each."""
    size = max((len(name) for name, _ in facts), default=0)
    if on_terminal():
        grid = _rich("rich.table").Table.grid(padding=(0, 2))
        for name, text in facts:
            grid.add_row(name, _text(_shown(text)), style=None)
        console().print(grid)
    else:
        print_lines(f"{name:<{size}}  {text}" for name, text in facts)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines."""
    for line in lines:
        click.echo(_shown(line))


def print_line(line: str) -> None:
    """Print a line of a log as it is, colours too, and at once: somebody may wait for it."""
    click.echo(hide(line))


def console() -> Any:
    """Return rich's console; it respects NO_COLOR.

    Raises:
        NotInstalledError: rich is not installed.
    """
    return _rich("rich.console").Console(highlight=False)


def live() -> Any:
    """Return rich's display that renews itself, for a whole screen."""
    return _rich("rich.live").Live(console=console(), screen=True, auto_refresh=False)


@contextmanager
def progress() -> Iterator[Callable[[str, int], Callable[[int], None]]]:
    """Show the progress of downloads: a bar on a terminal, a line for each file elsewhere.

    Yields:
        called with a file's name and size; returns what is told of the bytes that come.
    """
    if not sys.stderr.isatty():

        def begin(name: str, size: int) -> Callable[[int], None]:
            say(f"{name} ({size_of(size)})")
            return lambda _: None

        yield begin
        return
    rich, terminal = _rich("rich.progress"), _rich("rich.console").Console(stderr=True, highlight=False)
    name = _rich("rich.table").Column(ratio=1, no_wrap=True, overflow="ellipsis")
    columns = [rich.TextColumn("{task.description}", markup=False, table_column=name)]
    if terminal.width < _WIDE:
        columns += [rich.BarColumn(_SHORT_BAR), rich.TaskProgressColumn()]
    else:
        columns += [rich.BarColumn(), rich.DownloadColumn(), rich.TransferSpeedColumn()]
    with rich.Progress(*columns, console=terminal, expand=True) as bars:

        def add(name: str, size: int) -> Callable[[int], None]:
            task = bars.add_task(_shown(name), total=size)
            return lambda count: bars.advance(task, count)

        yield add


def rich_table(table: Table, width: int | None = None) -> Any:
    """Return a table for rich, with the columns that fit.

    Args:
        table: the table.
        width: of the terminal; None to ask it.
    """
    fits = table.fitting(width or console().width)
    made = _rich("rich.table").Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for head in fits.heads:
        # A name folds, because one that is cut cannot be copied.
        made.add_column(head, overflow="fold", no_wrap=head not in ("NAMESPACE", "NAME", "POD", "REASON"))
    for row in fits.rows:
        made.add_row(*(_text(_shown(text), _STYLES.get(text, "")) for text in row))
    return made


def screen(table: Table, problem: str) -> Any:
    """Return a view for a whole screen of rich: what is wrong, as many rows as there is room for, how many more.

    Args:
        table: the table.
        problem: a line above it; empty for none.
    """
    terminal = console()
    above = [_text(_shown(problem), "red")] if problem else []

    def view(count: int) -> Any:
        more = len(table.rows) - count
        below = [_text(f"and {more} more")] if more else []
        fits = replace(table, rows=table.rows[:count])
        return _rich("rich.console").Group(*above, rich_table(fits), *below)

    count = min(len(table.rows), terminal.height)
    while count and len(terminal.render_lines(view(count))) > terminal.height:
        count -= 1
    return view(count)


def _shown(text: str) -> str:
    return printable(hide(text))


def _text(text: str, style: str = "") -> Any:
    """Return a text for rich in which nothing is markup."""
    return _rich("rich.text").Text(text, style=style)


def _rich(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotInstalledError("rich") from error


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
