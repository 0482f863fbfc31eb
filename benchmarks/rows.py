"""Benchmarks that have several rows: which ones to run, and what was lost of them."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Collection, Iterable

from benchmarks.jobs import JobFailed
from benchmarks.paired import say

LOST = "lost: "


def parser_of(doc: str | None, rows: Collection[str]) -> argparse.ArgumentParser:
    """Return a command line that takes names of rows.

    Args:
        doc: of the program.
        rows: all names.
    """
    summary, _, rest = (doc or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"what to measure (default: all): {', '.join(rows)}")
    return parser


def take_rows(parser: argparse.ArgumentParser, args: argparse.Namespace, rows: Collection[str]) -> None:
    """Take all rows where none is named; an unknown one ends the program."""
    if unknown := [row for row in args.rows if row not in rows]:
        parser.error(f"argument ROW: there is no row {unknown[0]!r}: choose from {', '.join(rows)}")
    args.rows = args.rows or [*rows]


def run_rows(names: Iterable[str], run: Callable[[str], None], lost: list[str]) -> None:
    """Run rows one after the other. One that is lost costs no other, and is noted."""
    for name in names:
        say(f"row {name}")
        try:
            run(name)
        except JobFailed as failure:
            say(str(failure))
            lost.append(f"{LOST}row {name}: {str(failure).splitlines()[-1]}")
        except Exception as failure:  # noqa: BLE001 - the other rows are measured all the same
            say(traceback.format_exc())
            lost.append(f"{LOST}row {name}: {type(failure).__name__}: {failure}")


def end(lost: Collection[str]) -> None:
    """Say what was lost, and end the program: with 1 if anything was."""
    print(*lost, sep="\n", end="\n" if lost else "", flush=True)
    sys.exit(bool(lost))
