"""`stoker trainjob` prints nothing that `stoker validate` refuses on every runtime."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from builders import RUNTIME, container, gpu_runtime, kept, variables
from stoker.cluster.validate import validate_one
from stoker.contract.exits import RunError
from stoker.frameworks.trl.flags import METHODS, flag_table
from stoker.submit.command_line import TrainJobOptions, render

# What a method cannot be without, on a runtime that sets none of it.
NEEDED = {
    "grpo": {"reward_funcs": "think_format_reward"},
    "rloo": {"reward_funcs": "think_format_reward"},
    "distillation": {"teacher_model_name_or_path": "/workspace/teacher"},
    "grpo_async": {"reward_funcs": "think_format_reward", "samplers": "http://sampler:1", "use_peft": "true"},
    "kto": {"per_device_train_batch_size": "2"},
}
# Switches that some flags need, and that a runtime may set.
SWITCHES: tuple[dict[str, str], ...] = (
    {},
    {"use_peft": "true"},
    {"use_peft": "true", "load_in_4bit": "true"},
    {"eval_strategy": "steps", "log_completions": "true"},
    {"use_vllm": "true"},
    {"allow_incomparable_logprobs": "true"},
)
WORDS = (
    *("", "0", "1", "-1", "2", "1.5", "1e-4", "nan", "none", "true", "False", "x", "a b", "a,b", '{"a": 1}', "{"),
    *("[1]", "steps", "full_shard", "auto", "hf://a/b", "wandb"),
)
# What these may be depends on numbers that a runtime may set.
TOGETHER = {
    *("num_generations", "num_generations_eval", "generation_batch_size", "steps_per_generation"),
    *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
    *("max_staleness", "publish_every", "depth", "correction"),
}


def runtimes(method: str) -> Iterator[dict[str, Any]]:
    for switches in SWITCHES:
        told = {f"STOKER_ARG_{k.upper()}": value for k, value in switches.items() if k in flag_table(method).flags}
        for runtime in (kept(RUNTIME), gpu_runtime()):
            own = container(runtime)
            # Nobody knows what it has.
            own["image"] = "registry.example.com/own:1"
            own["env"] = [*own["env"], *variables(told)]
            yield runtime


@pytest.mark.parametrize(("count", "seed"), [(60, 1), pytest.param(1000, 2, marks=pytest.mark.full)])
def test_what_is_printed_is_valid_on_some_runtime(count: int, seed: int) -> None:
    rng = random.Random(seed)
    printed, refused = 0, []
    for _ in range(count):
        method = rng.choice(METHODS)
        flag = rng.choice([flag for name, flag in flag_table(method).flags.items() if name not in TOGETHER])
        word = rng.choice(flag.choices) if flag.choices and rng.random() < 0.3 else rng.choice(WORDS)
        settings = tuple(f"{name}={text}" for name, text in {**NEEDED.get(method, {}), flag.name: word}.items())
        options = TrainJobOptions(method, "x", settings=settings)
        try:
            job = yaml.safe_load(render(options))
        except RunError:
            continue
        printed += 1
        verdicts = []
        for runtime in runtimes(method):
            verdicts.append(validate_one(job, runtime))
            if not verdicts[-1].problems:
                break
        else:
            refused.append(f"{method} {flag.name}={word}: {[verdict.errors for verdict in verdicts]}")
    assert printed > count / 10
    assert refused == []
