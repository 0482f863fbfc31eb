"""Settings of TRL that parse but cannot be meant, or that contradict each other. Pure.

TRL finds most of these itself, but in every process of a run that has begun: rules of TRL 1.16 (its configs'
`__post_init__`) and transformers 5 (`TrainingArguments`).
"""

from __future__ import annotations

import datetime
import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stoker.frameworks.base import Asked
from stoker.plan.arguments import FlagTable, Setting, is_true

# Flag → the least and the greatest value that can be meant; None is no bound.
_RANGES: Mapping[str, tuple[float | None, float | None]] = {
    **dict.fromkeys(
        ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"), (1, None)
    ),
    **dict.fromkeys(("max_length", "max_completion_length", "lora_r", "lora_alpha"), (1, None)),
    **dict.fromkeys(("steps_per_generation", "generation_batch_size", "num_iterations"), (1, None)),
    **dict.fromkeys(("learning_rate", "weight_decay", "max_grad_norm", "warmup_steps", "temperature"), (0, None)),
    "dataloader_num_workers": (0, None),
    **dict.fromkeys(("lora_dropout", "label_smoothing_factor", "top_p"), (0, 1)),
    "num_generations": (2, None),
    # numpy's generators take no other.
    "seed": (0, 2**32 - 1),
}
# A fraction of all steps below 1, else a number of steps.
_ABOVE_ZERO = ("num_train_epochs",)
_STEPS_OR_FRACTION = ("save_steps", "eval_steps", "logging_steps")
# trl/scripts/utils.py: DatasetConfig.
_MIXED = ("path", "name", "data_dir", "data_files", "split", "columns", "fraction")
_BATCH = "per_device_train_batch_size"
# trl/scripts/grpo.py, rloo.py: reward_funcs_registry.
_REWARDS = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward", "get_soft_overlong_punishment")
_GENERATING = ("grpo", "rloo")
# Flags of several values for which TRL takes one word from a file as it is; of any other it would read the letters.
_WORD_FOR_LIST = ("lora_target_modules", "report_to", "loss_type")
# Package → the optimizers it brings (transformers/trainer_optimizer.py).
_OPTIMIZERS = {
    "bitsandbytes": (
        *("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit", "ademamix", "ademamix_8bit"),
        *("paged_ademamix_32bit", "paged_ademamix_8bit", "lion_32bit", "lion_8bit", "paged_lion_32bit"),
        *("paged_lion_8bit", "rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit"),
    ),
    "galore_torch": (
        *("galore_adamw", "galore_adamw_8bit", "galore_adafactor", "galore_adamw_layerwise"),
        *("galore_adamw_8bit_layerwise", "galore_adafactor_layerwise"),
    ),
    "apollo_torch": ("apollo_adamw", "apollo_adamw_layerwise"),
    "torchao": ("adamw_torch_4bit", "adamw_torch_8bit"),
    "torchdistx": ("adamw_anyprecision",),
    "schedulefree": ("schedule_free_radam", "schedule_free_adamw", "schedule_free_sgd"),
    "lomo_optim": ("lomo", "adalomo"),
    "grokadamw": ("grokadamw",),
    "optimi": ("stable_adamw",),
}
_ANY = "*"
# Flag → its value (or any) → the package that it needs, where images may do without.
_PACKAGES: Mapping[str, Mapping[str, str]] = {
    "reward_funcs": {"accuracy_reward": "math_verify", "reasoning_accuracy_reward": "math_verify"},
    "report_to": {name: name for name in ("wandb", "mlflow", "trackio", "tensorboard", "comet_ml", "swanlab")},
    "load_in_4bit": {"true": "bitsandbytes"},
    "load_in_8bit": {"true": "bitsandbytes"},
    "use_liger_kernel": {"true": "liger_kernel"},
    "use_vllm": {"true": "vllm"},
    "optim": {name: package for package, names in _OPTIMIZERS.items() for name in names},
    "deepspeed": {_ANY: "deepspeed"},
}
# Switch → the flags that mean nothing without it, by their beginnings: TRL would ignore them without a word.
_SWITCHED: Mapping[str, tuple[str, ...]] = {
    "use_peft": ("lora_", "use_rslora", "use_dora"),
    "load_in_4bit": ("bnb_4bit_", "use_bnb_nested_quant"),
    "use_vllm": ("vllm_",),
}
# The layers whose settings a user or a runtime writes, the weakest first.
_STRENGTH = ("runtime", "TrainJob env", "config file", "args")
# Flag → its keys that TRL's scripts lay over what other flags say, and those flags.
_LAID_OVER: Mapping[str, Mapping[str, str]] = {
    "model_init_kwargs": {"revision": "model_revision", "dtype": "dtype", "torch_dtype": "dtype"},
    "teacher_model_init_kwargs": {"revision": "teacher_model_revision"},
}
# Variables a `--config` file may not set: the runner's and the launcher's own.
_OWN_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
_OWN_PREFIXES = ("STOKER_", "PET_", "TORCHELASTIC_", "KUBEFLOW_TRAINER_")
_SWITCHED_OFF = "DISABLE_KUBEFLOW_INTEGRATION"


def contradictions(asked: Asked, table: FlagTable, settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield one problem for each setting that cannot be meant, alone or beside another.

    Args:
        asked: what the run is asked for.
        table: the method's flags, with the trainer's defaults.
        settings: what the layers came to.
    """

    def number(name: str) -> float | None:
        text = settings[name].value if name in settings else table.flags[name].default if name in table.flags else None
        try:
            return float(str(text))
        except ValueError:
            return None

    def on(name: str) -> bool:
        return name in settings and is_true(settings[name].value)

    yield from _out_of_range(settings)
    if "datasets" in settings:
        yield f"--datasets ({settings['datasets'].source}) takes no words: write the mixture in a --config file"
    if asked.config is not None and asked.content is None:
        # A file that was not read may say what is missing here.
        return
    yield from _exclusive(settings)
    if on("load_in_4bit") or on("load_in_8bit"):
        if not on("use_peft"):
            yield "a quantized model cannot be trained itself, only an adapter on it: add --use_peft"
        if asked.accelerator == "cpu":
            yield "a quantized model needs a GPU (bitsandbytes): leave --load_in_4bit and --load_in_8bit out on CPUs"
    yield from _without_switch(table, settings, on)
    yield from _laid_over(settings)
    yield from _ignored_epochs(settings)
    if asked.accelerator == "cpu" and _value(settings, "ddp_backend", "gloo") == "nccl":
        yield "--ddp_backend nccl needs GPUs: leave it out, or choose a runtime with an accelerator"
    if on("load_best_model_at_end") and str(_value(settings, "eval_strategy", "no")) == "no":
        yield "--load_best_model_at_end needs evaluations to know the best by: add --eval_strategy steps"
    if asked.method in _GENERATING:
        yield from _rewards(settings)
        yield from _generation_batch(asked.world_size, settings, number)

    if asked.method == "distillation" and not _value(settings, "teacher_model_name_or_path", ""):
        yield "distillation needs a teacher: write --teacher_model_name_or_path <folder or Hub id>"
    if asked.method == "kto" and _value(settings, "loss_type", "kto") == "kto" and number(_BATCH) == 1:
        yield f"kto estimates its KL term from the batch: write --{_BATCH} 2 or more (accumulated steps do not count)"


def self_contradictions(settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield one problem for each setting that no runtime can give a meaning to."""
    yield from _out_of_range(settings)
    yield from _exclusive(settings)


def _exclusive(settings: Mapping[str, Setting]) -> Iterator[str]:
    for pair in (("bf16", "fp16"), ("load_in_4bit", "load_in_8bit")):
        if all(name in settings and is_true(settings[name].value) for name in pair):
            yield f"--{pair[0]} and --{pair[1]} are both on: choose one"


def _rewards(settings: Mapping[str, Setting]) -> Iterator[str]:
    names = _value(settings, "reward_funcs", ())
    if not names and not _value(settings, "reward_model_name_or_path", ""):
        yield (
            f"no reward is named: write --reward_funcs with one of {', '.join(_REWARDS)}, a dotted path into a module "
            "of yours, or --reward_model_name_or_path"
        )
    for name in names:
        if "." not in name and name not in _REWARDS:
            yield f"--reward_funcs {name} is none of {', '.join(_REWARDS)}: write one, or the dotted path of your own"


def _without_switch(table: FlagTable, settings: Mapping[str, Setting], on: Callable[[str], bool]) -> Iterator[str]:
    for switch, beginnings in _SWITCHED.items():
        if switch not in table.flags or on(switch):
            continue
        for name, setting in settings.items():
            # A runtime may have them ready for those who do switch it on.
            ready = setting.source in ("runtime", "recipe") or setting.value == "false"
            if name.startswith(beginnings) and not ready:
                yield f"--{name} ({setting.source}) means nothing without --{switch}: add that, or leave it out"


def _ignored_epochs(settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield a problem if a number of steps from a weaker layer would rule over a number of epochs from a stronger."""
    steps, epochs = settings.get("max_steps"), settings.get("num_train_epochs")
    if steps is None or epochs is None or float(str(steps.value)) <= 0:
        return
    if {steps.source, epochs.source} <= {*_STRENGTH} and _STRENGTH.index(steps.source) < _STRENGTH.index(epochs.source):
        yield (
            f"--num_train_epochs {epochs.value} ({epochs.source}) would be ignored, for --max_steps {steps.value} "
            f"({steps.source}) rules over it: add --max_steps -1, or leave the epochs out"
        )


def _laid_over(settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield one problem for each key by which another model or type would be loaded than plan and manifest say."""
    for flag, keys in _LAID_OVER.items():
        try:
            told = json.loads(str(settings[flag].value)) if flag in settings else {}
        except (ValueError, RecursionError):
            continue  # which TRL refuses
        for key in told if isinstance(told, dict) else ():
            if key in keys:
                yield f"--{flag} ({settings[flag].source}) has {key}, for which there is a flag: write --{keys[key]}"


def _out_of_range(settings: Mapping[str, Setting]) -> Iterator[str]:
    for name, setting in settings.items():
        if isinstance(setting.value, tuple) or setting.source == "recipe":
            continue
        given = f"--{name} is {setting.value} ({setting.source})"
        if name == "max_steps" and (float(setting.value) == 0 or float(setting.value) < -1):
            yield f"{given}: write 1 or more, or leave it out to train by --num_train_epochs"
        if name in _ABOVE_ZERO and float(setting.value) <= 0:
            yield f"{given}: nothing would be trained, write a number above 0"
        if name in _STEPS_OR_FRACTION and not _is_steps_or_fraction(float(setting.value)):
            yield f"{given}: write a whole number of steps, or a fraction of all of them below 1"
        if name in _RANGES:
            least, greatest = _RANGES[name]
            if least is not None and float(setting.value) < least:
                yield f"{given}: write {least:g} or more"
            if greatest is not None and float(setting.value) > greatest:
                yield f"{given}: write {greatest:g} or less"


def _is_steps_or_fraction(value: float) -> bool:
    return 0 < value < 1 or (value >= 1 and value.is_integer())


def _generation_batch(
    world_size: int, settings: Mapping[str, Setting], number: Callable[[str], float | None]
) -> Iterator[str]:
    """Yield what TRL would say of the generation batch (GRPOConfig and RLOOConfig: `__post_init__`)."""
    per_device, generations = number("per_device_train_batch_size"), number("num_generations")
    batch, steps = number("generation_batch_size"), number("steps_per_generation")
    if per_device is None or generations is None or per_device < 1 or generations < 2:
        return
    together = per_device * world_size
    where = f"per_device_train_batch_size {per_device:g} × {world_size} processes"
    if batch is not None and steps is not None:
        yield "--generation_batch_size and --steps_per_generation say the same: choose one"
        return
    if batch is not None:
        if batch % together:
            yield f"--generation_batch_size {batch:g} is no multiple of {together:g} ({where})"
    else:
        steps = steps or number("gradient_accumulation_steps") or 1
        batch = together * steps
        where += f" × {steps:g} steps"
    if batch % generations:
        yield (
            f"a generation batch of {batch:g} ({where}) holds no whole number of groups of --num_generations "
            f"{generations:g}: change one so that {generations:g} divides the batch"
        )
    if str(_value(settings, "eval_strategy", "no")) != "no":
        evaluating = number("num_generations_eval") or generations
        evaluated = (number("per_device_eval_batch_size") or 8) * world_size
        if evaluated % evaluating:
            yield f"an evaluation batch of {evaluated:g} holds no whole number of groups of {evaluating:g} generations"


def needed_packages(settings: Mapping[str, Setting]) -> dict[str, str]:
    """Return the Python packages, beyond TRL's own, that settings need: package → the setting as it is written."""
    needed = {}
    for flag, packages in _PACKAGES.items():
        value = settings[flag].value if flag in settings else ()
        for word in value if isinstance(value, tuple) else (value,):
            package = packages.get(word.lower()) or packages.get(_ANY)
            if package is not None:
                needed[package] = f"--{flag} {word}"
    return needed


def _value(settings: Mapping[str, Setting], name: str, default: str | tuple[str, ...]) -> str | tuple[str, ...]:
    return settings[name].value if name in settings else default


def config_problems(content: Mapping[str, Any], table: FlagTable, path: str) -> Iterator[str]:
    """Yield one problem for each value of a `--config` file that TRL would read as something else."""
    for name, value in content.items():
        flag = table.flags.get(name)
        if isinstance(value, datetime.date):
            yield f"key {name} of {path} is read as a date by YAML: put it in quotes"
        if flag is not None and flag.many and isinstance(value, str) and name not in (*_WORD_FOR_LIST, "datasets"):
            yield f"key {name} of {path} takes a list: write [{value}]"
        if flag is not None and not flag.many and flag.type != "str" and isinstance(value, list):
            # TRL would take the list itself, and any list that is not empty for true.
            yield f"key {name} of {path} takes one value, not a list: write it without brackets"
    yield from _mixture_problems(content.get("datasets"), path)
    told = content.get("env")
    if told is not None and not isinstance(told, dict):
        yield f"key env of {path} must hold a mapping of variables to values"
        return
    for name, value in (told or {}).items():
        if not isinstance(name, str) or not name or not name.isascii() or {"=", "\0"} & {*name}:
            yield f"{name!r} under env of {path} is no variable's name"
        elif name in _OWN_VARIABLES or name == _SWITCHED_OFF or name.startswith(_OWN_PREFIXES):
            yield f"{name} under env of {path} is not for a config file: set it in spec.trainer.env, or leave it out"
        elif value is None or isinstance(value, dict | list) or "\0" in str(value):
            yield f"{name} under env of {path} must be text: put it in quotes"


def _mixture_problems(mixture: Any, path: str) -> Iterator[str]:
    if mixture is None:
        return
    if not isinstance(mixture, list) or not mixture:
        yield f"key datasets of {path} must hold a list of data sets, each with a path: write [{{path: owner/name}}]"
        return
    for entry in mixture:
        if not isinstance(entry, dict) or not entry.get("path"):
            yield f"an entry under datasets of {path} names no data set: write path: <folder or Hub id>"
        for key in entry if isinstance(entry, dict) else ():
            if key not in _MIXED:
                close = difflib.get_close_matches(str(key), _MIXED, n=1)
                advice = f"did you mean {close[0]}?" if close else f"it has {', '.join(_MIXED)}"
                yield f"an entry under datasets of {path} has no key {key}: {advice}"


def config_variables(content: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that a `--config` file sets; TRL does so in each process, once torch is loaded."""
    told = content.get("env")
    return {str(name): str(value) for name, value in told.items()} if isinstance(told, dict) else {}
