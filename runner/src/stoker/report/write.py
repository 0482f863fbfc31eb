"""Writes the pages and pictures: of a run that ends, and of runs that a user compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import write_text
from stoker.contract.metrics import METRICS, REPORT
from stoker.report.page import comparison_page, report_page
from stoker.report.runs import RecordedRun, output_of, read_run


def write_report(output: Path, facts: Mapping[str, Any]) -> bool:
    """Write the report of a run into its output folder.

    Args:
        output: the folder.
        facts: what the manifest will say of the run.

    Returns:
        whether there is a report: a run without metrics has none.

    Raises:
        OSError, ValueError: it cannot be read or written.
    """
    run = read_run(output, facts)
    if run is None:
        return False
    write_text(output / REPORT, report_page(run))
    return True


def compare(paths: Sequence[Path], target: Path) -> None:
    """Draw runs into one file: a page, or a picture.

    Args:
        paths: the runs' folders, or their files of metrics.
        target: the file; its ending says what it becomes.

    Raises:
        RunError: there is nothing to draw (65, 66), the ending is another (64), or matplotlib is missing (78).
        OSError: a file cannot be read or written.
    """
    if target.suffix not in (".html", ".png"):
        raise RunError(ExitCode.USAGE, f"--to {target} is neither a page nor a picture: let it end in .html or .png")
    runs = {label: _read(path) for label, path in labelled(paths).items()}
    if target.suffix == ".png":
        from stoker.report.png import write_picture

        write_picture(runs, target)
    elif len(runs) == 1:
        write_text(target, report_page(*runs.values()))
    else:
        write_text(target, comparison_page(runs))


def labelled(paths: Sequence[Path]) -> dict[str, Path]:
    """Return the runs' folders by the shortest ends of their paths that tell them apart; each folder once."""
    folders = list(dict.fromkeys(output_of(path).resolve() for path in paths))
    # Every run's folder is called so.
    parts = [(folder.parent if folder.name == "output" else folder).parts for folder in folders]
    length = 1
    while len({part[-length:] for part in parts}) < len(parts) and length < max(map(len, parts)):
        length += 1
    labels = ["/".join(part[-length:]) for part in parts]
    if len({*labels}) < len(labels):
        labels = [str(folder) for folder in folders]
    return dict(zip(labels, folders, strict=True))


def _read(folder: Path) -> RecordedRun:
    try:
        run = read_run(folder)
    except ValueError as error:
        raise RunError(ExitCode.BAD_DATA, str(error)) from error
    if run is None:
        raise RunError(
            ExitCode.BAD_DATA, f"{folder / METRICS} has no metrics yet: wait until the run has logged its first step"
        )
    return run
