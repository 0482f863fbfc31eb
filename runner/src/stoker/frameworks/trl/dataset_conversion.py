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
            data = loaded[split]
            # The file of a Hub data set cannot be inspected before, so its rows are the first to tell.
            gone = [column for column in get_dataset_column_names(data) if column not in KEPT]
            row = partial(_row, name, method, f"{path} ({split})")
            loaded[split] = data.map(row, with_indices=True, remove_columns=gone)
        return loaded

    datasets.load_dataset = load_converted


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
