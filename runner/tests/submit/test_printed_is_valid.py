"""`stoker trainjob` prints nothing that `stoker validate` refuses on every runtime."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations, product
from typing import Any

import pytest
import yaml

from builders import RUNTIME, container, gpu_runtime, kept, variables
from stoker.cluster.validate import validate_one
from stoker.contract.exits import RunError
from stoker.frameworks.trl.flags import METHODS, flag_table
from stoker.frameworks.trl.optimizers import ARGUMENTS
from stoker.frameworks.trl.schedules import SCHEDULES
from stoker.submit.command_line import TrainJobOptions, trainjob_of
from stoker.submit.trainjob import to_yaml

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
# What these may be depends on numbers that a runtime may set; `with_numbers` has runtimes that do.
TOGETHER = {
    *("num_generations", "num_generations_eval", "generation_batch_size", "steps_per_generation"),
    *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
    *("max_staleness", "publish_every", "depth", "correction"),
}

# Flag → what a runtime may set beside it: keys of a schedule fit its type, and some optimizers need more than a name.
_TYPES = [{"lr_scheduler_type": name} for name in SCHEDULES]
_OPTIMIZERS = [{"optim": name, "optim_target_modules": "all-linear"} for name in (*ARGUMENTS, "galore_adamw", "lomo")]
COMPANIONS: Mapping[str, list[dict[str, str]]] = {
    "lr_scheduler_type": [
        {},
        *({"lr_scheduler_kwargs": json.dumps(keys)} for keys in ({"min_lr": 0}, {"num_decay_steps": 1})),
    ],
    "lr_scheduler_kwargs": [*_TYPES],
    "optim": [{}, {"optim_target_modules": "all-linear"}],
    "optim_args": _OPTIMIZERS,
    "optim_target_modules": [{}, {"optim": "galore_adamw"}],
    "padding_free": [{}, {"packing": "true"}, {"max_length": "none"}],
}


def runtimes(method: str, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield runtimes that set any two of a method's switches, companions of these flags, and any tracker's accounts."""
    switches = [(one,) for one in SWITCHES] + [*combinations(SWITCHES[1:], 2)]
    for some in product(switches, *(COMPANIONS[name] for name in names if name in COMPANIONS)):
        beside = {name: text for one in (*some[0], *some[1:]) for name, text in one.items()}
        set_ = {name: text for name, text in beside.items() if name in flag_table(method).flags}
        told = {f"STOKER_ARG_{name.upper()}": text for name, text in set_.items()}
        for runtime in (kept(RUNTIME), gpu_runtime()):
            own = container(runtime)
            # Nobody knows what it has.
            own["image"] = "registry.example.com/own:1"
            own["env"] = [*own["env"], *variables(told)]
            own["envFrom"] = [{"secretRef": {"name": "accounts"}}]
            yield runtime


def with_numbers(method: str) -> Iterator[dict[str, Any]]:
    """Yield runtimes with one to three processes that set the numbers on which others depend."""
    names = ("per_device_train_batch_size", "gradient_accumulation_steps", "num_generations", "max_staleness")
    for processes, *numbers in product("123", "138", "1238", "238", ("0", "16")):
        told = {name: text for name, text in zip(names, numbers, strict=True) if name in flag_table(method).flags}
        runtime = kept(RUNTIME)
        own = container(runtime)
        own["env"] = [entry for entry in own["env"] if entry["name"] != "STOKER_NPROC_PER_NODE"]
        own["env"] += variables({f"STOKER_ARG_{name.upper()}": text for name, text in told.items()})
        own["env"] += variables({"STOKER_NPROC_PER_NODE": processes})
        yield runtime


def printed_of(method: str, settings: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the TrainJob of a method with these settings and what it cannot be without; None if it is refused."""
    texts = {**NEEDED.get(method, {}), **settings}
    try:
        words = TrainJobOptions(method, "x", settings=tuple(f"{name}={value}" for name, value in texts.items()))
        text = to_yaml(trainjob_of(words))
    except RunError:
        return None
    job: dict[str, Any] = yaml.safe_load(text)
    return job


def refusals(job: dict[str, Any], runtimes: Iterable[dict[str, Any]]) -> list[str]:
    """Return what is wrong with a TrainJob on each runtime; empty if one takes it."""
    errors = []
    for runtime in runtimes:
        verdict = validate_one(job, runtime)
        if not verdict.problems:
            return []
        errors.append(verdict.errors)
    return errors


def some_setting(rng: random.Random, method: str) -> tuple[str, str]:
    flag = rng.choice([flag for name, flag in flag_table(method).flags.items() if name not in TOGETHER])
    return flag.name, rng.choice(flag.choices) if flag.choices and rng.random() < 0.3 else rng.choice(WORDS)


def alone(rng: random.Random, method: str) -> tuple[str, str]:
    """Return a setting that is printed on its own."""
    while True:
        name, value = some_setting(rng, method)
        if printed_of(method, {name: value}) is not None:
            return name, value


@pytest.mark.parametrize(("count", "seed"), [(60, 1), pytest.param(1000, 2, marks=pytest.mark.full)])
def test_what_is_printed_is_valid_on_some_runtime(count: int, seed: int) -> None:
    rng = random.Random(seed)
    printed, refused = 0, []
    for _ in range(count):
        method = rng.choice(METHODS)
        name, value = some_setting(rng, method)
        job = printed_of(method, {name: value})
        if job is not None:
            printed += 1
            if errors := refusals(job, runtimes(method, [name])):
                refused.append(f"{method} {name}={value}: {errors}")
    assert printed > count / 10
    assert refused == []


@pytest.mark.parametrize(("count", "seed"), [(60, 3), pytest.param(1500, 4, marks=pytest.mark.full)])
def test_two_settings_that_go_alone_are_valid_together_or_refused(count: int, seed: int) -> None:
    rng = random.Random(seed)
    printed, refused = 0, []
    for _ in range(count):
        method = rng.choice(METHODS)
        settings = dict([alone(rng, method), alone(rng, method)])
        job = printed_of(method, settings)
        if job is not None:
            printed += 1
            if errors := refusals(job, runtimes(method, settings)):
                refused.append(f"{method} {settings}: {errors}")
    assert printed > count / 2
    assert refused == []


@pytest.mark.parametrize(("count", "seed"), [(100, 5), pytest.param(1500, 6, marks=pytest.mark.full)])
def test_two_numbers_that_depend_on_each_other_are_valid_somewhere_or_refused(count: int, seed: int) -> None:
    rng = random.Random(seed)
    printed, refused = 0, []
    for _ in range(count):
        method = rng.choice(("grpo", "rloo", "grpo_async"))
        names = rng.sample(sorted(TOGETHER & {*flag_table(method).flags}), 2)
        settings = {name: rng.choice(("1", "2", "3", "8", "0", "auto", "decoupled", "none")) for name in names}
        job = printed_of(method, settings)
        if job is not None:
            printed += 1
            if errors := refusals(job, with_numbers(method)):
                refused.append(f"{method} {settings}: {sorted({*errors}, key=len)[:3]}")
    assert printed > count / 10
    assert refused == []
