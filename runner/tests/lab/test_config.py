"""The config's defaults are those of the plan, and a wrong value is refused by its name."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stoker.lab
from stoker.contract.exits import RunError
from stoker.lab import LabError, LoRATrainConfig

WRONG = {
    "rank": (0, 1.5, True, "8", None),
    "alpha": (0, -1),
    "target_modules": ([], "q_proj", [1], ("q_proj",), None),
    "dropout": (1, -0.1, "0", math.nan),
    "learning_rate": (0, math.inf, math.nan, "2e-4"),
    "batch_size": (0, 2.0),
    "gradient_accumulation_steps": (0,),
    "num_epochs": (0, 0.5),
    "warmup_ratio": (1.0, -0.1),
    "max_grad_norm": (-1, math.inf),
    "output_dir": ("", None),
    "max_length": (0,),
    "beta": (0,),
    "seed": (-1, 1.0),
    "dtype": ("fp8", "float16", None),
    "logging_steps": (0,),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_value_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(LabError, match=rf"^LoRATrainConfig: {name} is .*: it must be "):
        LoRATrainConfig(**{name: value})


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ValueError, match="rank is 0") as caught:
        LoRATrainConfig(rank=0, dropout=2.0)
    assert isinstance(caught.value, RunError)
    assert len(str(caught.value).splitlines()) == 2


def test_a_value_that_was_changed_is_checked_when_it_is_used() -> None:
    config = LoRATrainConfig()
    config.rank = 0
    with pytest.raises(LabError, match="rank is 0"):
        config.validate()


def test_two_configs_do_not_share_a_list() -> None:
    LoRATrainConfig().target_modules.clear()  # type: ignore[union-attr]
    assert LoRATrainConfig().target_modules == ["q_proj", "k_proj", "v_proj", "o_proj"]


def test_the_public_names_are_there_and_load_when_used() -> None:
    assert sorted(stoker.lab.__all__) == sorted(stoker.lab._MODULES)
    assert set(stoker.lab.__all__) <= set(dir(stoker.lab))
    with pytest.raises(AttributeError, match="nothing"):
        _ = stoker.lab.nothing


def test_importing_it_loads_nothing_heavy() -> None:
    code = (
        "import sys, stoker.lab; stoker.lab.LoRATrainConfig(); print({'torch', 'trl', 'vllm', 'peft'} & {*sys.modules})"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(stoker.lab.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env)
    assert done.stdout.strip() == "set()"
