"""The names, parameters and defaults that the vLLM-Train plan promises, whatever else a class takes.

The plan describes five phases; the tables hold its facts for those that are built.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import stoker.lab
from stoker.lab import LoRATrainConfig, RLHFConfig

SOURCE = Path(stoker.lab.__file__).parent

FIELDS = {
    "rank": 8,
    "alpha": 16,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "dropout": 0.0,
    "learning_rate": 2e-4,
    "batch_size": 4,
    "gradient_accumulation_steps": 4,
    "num_epochs": 3,
    "warmup_ratio": 0.1,
    "max_grad_norm": 1.0,
    "output_dir": "./lora_output",
}
# The plan reads these, and gives no defaults.
RLHF_FIELDS = ("lora_config", "temperature", "max_new_tokens", "save_steps")
REQUIRED = "required"
# Class → method → its parameters with their defaults, in the plan's order.
METHODS: dict[str, dict[str, dict[str, object]]] = {
    "LoRATrainer": {
        "__init__": {"model_name": REQUIRED, "train_config": REQUIRED},
        "setup_training": {},
        "train": {"dataset": REQUIRED},
        "save_lora": {"path": REQUIRED},
        "generate": {"prompts": REQUIRED, "lora_path": None},
    },
    "CausalLMDataset": {
        "__init__": {"data": REQUIRED, "tokenizer": REQUIRED, "max_length": 2048},
        "__getitem__": {"idx": REQUIRED},
    },
    "PreferenceDataset": {"__init__": {"data": REQUIRED, "tokenizer": REQUIRED, "max_length": 2048}},
    "CausalLMLoss": {"forward": {"logits": REQUIRED, "labels": REQUIRED, "attention_mask": None}},
    "DPOLoss": {
        "__init__": {"beta": 0.1},
        "forward": dict.fromkeys(
            ("policy_chosen_logps", "policy_rejected_logps", "ref_chosen_logps", "ref_rejected_logps"), REQUIRED
        ),
    },
    "RLHFTrainer": {
        "__init__": {"model_name": REQUIRED, "reward_model_name": REQUIRED, "config": REQUIRED},
        "generate_rollouts": {"prompts": REQUIRED},
        "compute_rewards": {"prompts": REQUIRED, "responses": REQUIRED},
        "ppo_step": {"prompts": REQUIRED},
        "train": {"prompt_dataset": REQUIRED, "num_steps": REQUIRED},
        "save_checkpoint": {"name": REQUIRED},
    },
    "TrainableLoRALinear": {
        "__init__": {"in_features": REQUIRED, "out_features": REQUIRED, "rank": 8, "alpha": 16, "dropout": 0.0},
        "forward": {"x": REQUIRED, "base_output": REQUIRED},
    },
    "LoRAInjector": {"__init__": {"config": REQUIRED}, "inject": {"model": REQUIRED}},
}


def test_the_configs_fields_come_in_order_and_have_the_plans_defaults() -> None:
    config = LoRATrainConfig()
    assert {name: getattr(config, name) for name in FIELDS} == FIELDS
    positional = LoRATrainConfig(*FIELDS.values())  # type: ignore[arg-type]
    assert positional == config


def test_the_config_of_rlhf_has_what_the_plan_reads() -> None:
    config = RLHFConfig()
    assert [*vars(config)][: len(RLHF_FIELDS)] == [*RLHF_FIELDS]
    assert config.lora_config == LoRATrainConfig()


@pytest.mark.parametrize(("name", "method"), [(name, method) for name in METHODS for method in METHODS[name]])
def test_a_method_takes_what_the_plan_gives_it(name: str, method: str) -> None:
    takes = parameters(name, method)
    asked = METHODS[name][method]
    assert dict([*takes.items()][: len(asked)]) == asked
    assert REQUIRED not in [default for key, default in takes.items() if key not in asked], "the plan's calls must work"


def parameters(name: str, method: str) -> dict[str, object]:
    """Return the positional parameters of a method with their defaults, read from the source: torch is not here."""
    module = SOURCE / f"{stoker.lab._MODULES[name].replace('.', '/')}.py"
    (found,) = (node for node in ast.parse(module.read_text()).body if getattr(node, "name", None) == name)
    assert isinstance(found, ast.ClassDef)
    (function,) = (node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == method)
    names = [argument.arg for argument in function.args.args[1:]]
    defaults = [ast.literal_eval(default) for default in function.args.defaults]
    return dict(zip(names, [REQUIRED] * (len(names) - len(defaults)) + defaults, strict=True))
