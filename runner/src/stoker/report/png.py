"""Draws runs as a picture, by matplotlib, which the runner itself does not need."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.packages import from_checkout, not_installed
from stoker.report.figures import figures_between, figures_of
from stoker.report.runs import RecordedRun

_COLUMNS, _WIDTH, _HEIGHT = 2, 6.4, 2.8


def write_picture(runs: Mapping[str, RecordedRun], target: Path) -> None:
    """Draw runs, by their labels, into a PNG.

    Raises:
        RunError: there is nothing to draw (65), or matplotlib is missing (78).
        OSError: the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RunError(
            ExitCode.CONFIG,
            not_installed("a PNG", f"{from_checkout('plot')}, or let --to end in .html", "matplotlib"),
        ) from error
    figures = figures_of(*runs.values()) if len(runs) == 1 else figures_between(runs)
    if not figures:
        raise RunError(
            ExitCode.BAD_DATA,
            f"a picture shows no metric of {', '.join(runs)}: wait until the loss is logged, or let --to end in .html",
        )
    rows = -(-len(figures) // _COLUMNS)
    canvas = Figure(figsize=(_COLUMNS * _WIDTH, rows * _HEIGHT), layout="constrained")
    for index, figure in enumerate(figures):
        plot = canvas.add_subplot(rows, _COLUMNS, index + 1)
        for series in figure.series:
            steps, values = zip(*series.points, strict=True)
            # `$` would begin a formula.
            label = series.label.replace("$", r"\$")
            marker = "." * (len(steps) < 40)
            plot.plot(steps, values, label=label, color=f"C{series.style}", linewidth=1, marker=marker)
        title = f"{figure.title} ({figure.unit})" if figure.unit else figure.title
        plot.set_title(title.replace("$", r"\$"), fontsize="medium")
        plot.grid(visible=True, alpha=0.3)
        plot.legend(fontsize="small")
    canvas.savefig(target, dpi=120)
