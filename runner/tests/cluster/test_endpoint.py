"""`stoker validate` knows an endpoint for the tinker client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from builders import Manifest, kept, trainjob
from stoker.cluster.validate import Validation, validate_one
from stoker.contract.exits import ExitCode

RUNTIME = yaml.safe_load((Path(__file__).parents[3] / "examples/runtimes/trl-tinker-cpu.yaml").read_text())
SECRET = {"secretKeyRef": {"name": "run-session", "key": "api-key"}}
KEY = {"name": "STOKER_SAMPLERS_API_KEY", "valueFrom": SECRET}


def validated(runtime: Manifest = RUNTIME, **trainer: Any) -> Validation:
    return validate_one(trainjob(runtime="trl-tinker", **{"env": [KEY], "numNodes": 1, **trainer}), runtime)


def test_a_trainjob_with_a_key_is_valid() -> None:
    found = validated(kept(RUNTIME), args=["--max_rank=16"])
    assert found.problems == ()
    assert ": valid: an endpoint for the tinker client, beside 1 samplers" in found.summary
    assert "not checked: the model /workspace/model, in the volume initializer" in found.summary


def test_a_model_on_the_hub_is_not_looked_for() -> None:
    found = validated(args=["--model_name_or_path=org/tiny"])
    assert (found.problems, "not checked: the model" in found.summary) == ((), False)


def test_a_model_that_nothing_brings_is_missed() -> None:
    found = validated()
    assert found.code is ExitCode.NO_INPUT
    assert (
        "the model /workspace/model is missing, because the volume initializer at /workspace is empty when the run "
        "starts: put it there (spec.initializer.model of the TrainJob does that), mount it, or set another one with "
        "--model_name_or_path"
    ) in found.errors


def test_what_the_pod_would_refuse_is_refused() -> None:
    for trainer, code, said in (
        ({"env": []}, ExitCode.CONFIG, "stoker rl up NAME --runtime trl-tinker"),
        ({"args": ["--lora_r=16"]}, ExitCode.USAGE, "no such option"),
        ({"numNodes": 2}, ExitCode.CONFIG, "the TrainJob has 2 nodes"),
        ({"env": [KEY, {"name": "STOKER_SAMPLERS", "value": "ftp://a"}]}, ExitCode.CONFIG, "ftp://a"),
    ):
        found = validated(**trainer)
        assert (found.code, said in found.errors) == (code, True), found.errors
