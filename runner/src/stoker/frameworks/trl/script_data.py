"""The data of a script in the shape of TRL's, for the methods that TRL ships without one."""

from __future__ import annotations

from typing import Any


def script_data(script_args: Any, dataset_args: Any) -> Any:
    """Return the splits that the flags name, or their mixture, as TRL's own scripts load them.

    Args:
        script_args: `trl.ScriptArguments`.
        dataset_args: `trl.DatasetMixtureConfig`.

    Raises:
        ValueError: no data is named.
    """
    from datasets import load_dataset
    from trl import get_dataset

    if dataset_args.datasets:
        return get_dataset(dataset_args)
    if not script_args.dataset_name:
        raise ValueError("Either `datasets` or `dataset_name` must be provided.")
    return load_dataset(
        script_args.dataset_name, name=script_args.dataset_config, streaming=script_args.dataset_streaming
    )
