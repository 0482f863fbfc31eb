"""Converts the rows of a data set of another format while TRL's script loads it."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import datasets
from trl.data_utils import get_dataset_column_names

from stoker.contract.exits import ExitCode, RunError
from stoker.frameworks.trl.dataset_formats import KEPT, BadRowError, converted


def convert_loaded(name: str, method: str, dataset: str, config: str | None, splits: Collection[str]) -> None:
    """Have `load_dataset` return these splits of the run's data set as TRL reads them; others stay as they are.

    Args:
        name: the format of the rows.
        method: the training method.
        dataset: the run's data set, a path or a name on the Hub.
        config: its configuration; None for the default.
        splits: the splits that the run reads.
    """
    load = datasets.load_dataset

    def load_converted(path: str, *args: Any, **options: Any) -> Any:
        loaded = load(path, *args, **options)
        # The scripts load the run's data set whole, by its name and configuration alone.
        asked = {key: value for key, value in options.items() if key != "streaming"}
        if args or path != dataset or asked != {"name": config}:
            return loaded
        for split in splits & loaded.keys():
            loaded[split] = converted_rows(loaded[split], name, method, f"{path} ({split})")
        return loaded

    datasets.load_dataset = load_converted


def converted_rows(data: Any, name: str, method: str, where: str) -> Any:
    """Return a data set as TRL reads it.

    Args:
        data: the rows.
        name: their format.
        method: the training method.
        where: what messages call the data set.

    Raises:
        RunError: a row is not of the format (65), told when it is read.
    """
    # The file of a Hub data set cannot be inspected before, so its rows are the first to tell.
    gone = [column for column in get_dataset_column_names(data) if column not in KEPT]
    return data.map(partial(_row, name, method, where), with_indices=True, remove_columns=gone)


def _row(name: str, method: str, where: str, row: dict[str, Any], index: int) -> dict[str, Any]:
    """Return a row as TRL reads it.

    Raises:
        RunError: the row is not of the format (65).
    """
    try:
        return converted(name, method, row)
    except BadRowError as error:
        text = f"row {index + 1} of the data set {where} is not {name}: {error}; mend or drop it"
        raise RunError(ExitCode.BAD_DATA, text) from None
