"""The TrainJob of a policy trains as the policy does, or says why there is none."""

from __future__ import annotations

import json
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
    assert sent.pop("use_peft") == []
    assert sent == {name: words(value) for name, value in {**told, **adapter, **place, **own}.items()}


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


def test_there_is_no_trainjob_of_rewards_alone(policy: Policy) -> None:
    policy.changed(Trained("ppo", 1, 0.5, 1.0, 1, ()))
    with pytest.raises(LabError, match=r"trained only with rewards, .*: train .* grpo_async .* or write method='sft'"):
        policy.to_trainjob("sums", "a/dataset")
    assert policy.to_trainjob("sums", "a/dataset", method="sft")
    policy.changed(Trained("dpo", 1, 0.5, 1.0, 1, ()))
    assert "trl.scripts.dpo" in str(policy.to_trainjob("sums", "a/dataset"))
