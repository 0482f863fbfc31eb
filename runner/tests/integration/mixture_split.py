"""Print the rows that a training process puts aside of a mixture for evaluation, as JSON.

argv is a data set, a file for the process's pulse, and flags. Runs in an environment with the trainers.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

from trl import DatasetMixtureConfig, get_dataset
from trl.scripts.utils import DatasetConfig

from stoker.frameworks.trl.trainer import train
from stoker.node.planning import plan_here
from stoker.rank.job import Job
from stoker.rank.pulse import Pulse


def main(data: str, folder: str, *flags: str) -> None:
    """Print the rows."""

    def script(*_: Any, **__: Any) -> None:
        split = get_dataset(DatasetMixtureConfig(datasets=[DatasetConfig(path=data)], test_split_size=0.5))
        print(json.dumps([*split["test"]["text"]]))

    setattr(runpy, "run_module", script)  # noqa: B010 - it stands for TRL's script
    plan = plan_here(["trl.scripts.sft", "--model_name_or_path", "m", "--dataset_name", data, *flags])
    own = Path(folder)
    train(Job(plan, None, lambda device=None: None, own / "stop", Pulse(own, 0), lambda: None))


if __name__ == "__main__":
    main(*sys.argv[1:])
