"""`stoker plot`: the curves of runs, compared."""

from __future__ import annotations

import json
from pathlib import Path

import click

from stoker.commands.group import PATH, formatted, reported


@click.command(
    "plot",
    epilog="\b\nExamples:\n"
    "  stoker plot first/output second/output\n"
    "  stoker plot --to loss.png first second third\n"
    "\b\nExit codes:\n"
    "   0  FILE is written\n"
    "  64  FILE ends neither in .html nor in .png\n"
    "  65  a run has no metrics yet, or none that a picture shows\n"
    "  66  a folder is not one of a run\n"
    "  78  a PNG needs matplotlib: pip install './runner[plot]' from a checkout\n",
)
@click.argument("runs", nargs=-1, required=True, type=PATH)
@click.option(
    "--to",
    "target",
    type=PATH,
    default=Path("stoker-plot.html"),
    show_default=True,
    metavar="FILE",
    help="File to write: .html, or .png with matplotlib.",
)
@formatted()
@reported
def plot_command(runs: tuple[Path, ...], target: Path, output: str) -> None:
    """Draw the curves of RUNS into one page or picture.

    A run is its output folder, its workspace, or its metrics.jsonl; it may still be running. The page needs no network
    and no script. For one run it is the report that the run writes at its end, output/report.html.
    """
    from stoker.report.write import compare

    compare(runs, target)
    click.echo(json.dumps({"written": str(target)}) if output == "json" else f"written: {target}")
