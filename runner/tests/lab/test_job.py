"""The TrainJob of a policy trains as the policy does, or says why there is none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stoker.lab import LabError, LoRATrainConfig, Policy
from stoker.lab.job import trl_config
from stoker.lab.trainer import Trained

# No field has its default, nor TRL's, so that one that is not sent is missed.
CONFIG = LoRATrainConfig(
    rank=4, alpha=12, target_modules=["up_proj", "v_proj"], dropout=0.25, learning_rate=3e-3, batch_size=7,
    gradient_accumulation_steps=5, num_epochs=9, warmup_ratio=0.3, max_grad_norm=0.7, max_length=77, beta=0.6, seed=11,
    dtype="float32",
)  # fmt: skip
# Where files go and how often a line is logged is the runtime's choice.
RUNTIMES = {"output_dir", "logging_steps"}
PEFTS = {"r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout",
         "target_modules": "lora_target_modules"}  # fmt: skip


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    """A policy of a model that is never loaded."""
    (tmp_path / "config.json").write_text("{}")
    return Policy(str(tmp_path), CONFIG)


@pytest.mark.parametrize(("method", "own"), [("sft", {"packing": False}), ("dpo", {"beta": 0.6})])
def test_a_trainjob_has_each_argument_of_the_training(method: str, own: dict[str, Any]) -> None:
    sent = flags(trl_config("a/model", CONFIG, method, "a/dataset").to_args())
    told = {name: value for name, value in CONFIG.training_arguments().items() if name not in RUNTIMES}
    adapter = {flag: CONFIG.lora_arguments()[name] for name, flag in PEFTS.items()}
    place = {"model_name_or_path": "a/model", "dataset_name": "a/dataset"}
    weights = {"dtype": "float32", "bf16": False}
    assert sent.pop("use_peft") == []
    assert sent == {name: words(value) for name, value in {**told, **adapter, **place, **weights, **own}.items()}


def test_the_type_of_weights_is_the_runtimes_choice_unless_it_is_named() -> None:
    assert not {"dtype", "bf16"} & flags(trl_config("a/model", LoRATrainConfig(), "sft", "b").to_args()).keys()
    sent = flags(trl_config("a/model", LoRATrainConfig(dtype="bfloat16"), "sft", "b").to_args())
    assert (sent["dtype"], sent["bf16"]) == (["bfloat16"], [])


def flags(args: list[str]) -> dict[str, list[str]]:
    """Return the words of each flag, without the module before them."""
    found: dict[str, list[str]] = {}
    for word in args[1:]:
        if word.startswith("--"):
            found[word.removeprefix("--")] = last = []
        else:
            last.append(word)
    return found


def words(value: Any) -> list[str]:
    """Return a value in words of a command line."""
    return value if isinstance(value, list) else [value if isinstance(value, str) else json.dumps(value)]


@pytest.mark.parametrize(
    "methods",
    [("ppo",), ("unfinished",), ("sft", "sft"), ("sft", "dpo"), ("sft", "ppo"), ("unfinished", "sft")],
    ids=" then ".join,
)
def test_a_trainjob_is_one_training_on_rows(policy: Policy, methods: Sequence[str]) -> None:
    for method in methods:
        policy.changed(trained(method))
    told = rf"had {', then '.join(methods)}: .* write Policy\(model, config\)\.to_trainjob\(.*grpo_async"
    for asked in (None, "sft"):
        with pytest.raises(LabError, match=told):
            policy.to_trainjob("sums", "a/dataset", method=asked)


def test_a_trainjob_has_what_the_policy_was_trained_with(policy: Policy) -> None:
    policy.changed(trained("dpo"), "a/dataset")
    policy.config.num_epochs = 1
    sent = str(policy.to_trainjob("sums"))
    assert all(part in sent for part in ("trl.scripts.dpo", "a/dataset", "'--num_train_epochs', '9'")), sent


def trained(method: str) -> Trained:
    """Return what a training did."""
    return Trained(method, 1, 0.5, 1.0, 1, ())
