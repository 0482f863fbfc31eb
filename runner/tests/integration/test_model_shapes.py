"""The arithmetic of `stoker estimate` counts the weights that the real models have."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from stoker.plan.estimate import Training, estimate
from stoker.plan.model_shape import FAMILIES, shape_of

SCRIPT = Path(__file__).with_name("model_shapes.py")


@pytest.mark.full
def test_every_family_has_the_weights_that_transformers_and_peft_count(trainer_python: Path) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    counted = subprocess.run(
        [trainer_python, SCRIPT, *FAMILIES], check=True, stdout=subprocess.PIPE, text=True, env=env
    )
    models = [json.loads(line) for line in counted.stdout.splitlines()]
    assert {model["config"]["model_type"] for model in models} == {*FAMILIES}
    for model in models:
        shape = shape_of(model["config"])
        assert shape is not None, model
        assert shape.weights == model["weights"], model
        trained = estimate(shape, Training("lora", 4, 4, 8, rank=model["rank"])).trained_weights
        if shape.experts:
            # PEFT gives the experts' first matrices a larger rank, and the routers an adapter.
            assert model["trained"] / 2 < trained <= model["trained"], model
        else:
            assert trained == model["trained"], model
