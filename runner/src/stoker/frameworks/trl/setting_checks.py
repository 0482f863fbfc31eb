"""Finds settings of TRL that parse but cannot work, or that contradict each other. Pure.

TRL finds most of these too, but only in the processes of a run that has started. The rules are those of TRL 1.16 (its
configs' `__post_init__`) and transformers 5 (`TrainingArguments`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence

from stoker.frameworks.command_line import evaluates
from stoker.frameworks.trl.asynchronous import refusals
from stoker.frameworks.trl.evaluation_checks import evaluation_problems
from stoker.frameworks.trl.kernels import chosen_attention, varlen_problems
from stoker.frameworks.trl.known_words import VARLEN, unknown_words
from stoker.frameworks.trl.mappings import mapping_in, mapping_problems, recomputing_problems
from stoker.frameworks.trl.optimizers import optimizer_problems, own_optimizer_problems
from stoker.frameworks.trl.packages import TRACKERS
from stoker.frameworks.trl.schedules import own_schedule_problems, schedule_problems
from stoker.frameworks.trl.sharding import sharding_problems
from stoker.plan.arguments import CONFIG_FILE, NONE, FlagTable, Setting, is_true
from stoker.plan.interfaces import Asked

# Flag → its smallest and largest value; None for no bound.
_RANGES: Mapping[str, tuple[float | None, float | None]] = {
    **dict.fromkeys(
        ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"), (1, None)
    ),
    **dict.fromkeys(("max_length", "max_completion_length", "lora_r", "lora_alpha"), (1, None)),
    **dict.fromkeys(("steps_per_generation", "generation_batch_size", "num_iterations"), (1, None)),
    **dict.fromkeys(("learning_rate", "weight_decay", "max_grad_norm", "warmup_steps", "temperature"), (0, None)),
    "dataloader_num_workers": (0, None),
    "torch_empty_cache_steps": (1, None),
    **dict.fromkeys(("lora_dropout", "label_smoothing_factor", "top_p"), (0, 1)),
    "num_generations": (2, None),
    **dict.fromkeys(("max_staleness", "episode_seconds", "min_p"), (0, None)),
    **dict.fromkeys(("publish_every", "publish_whole_every", "guard_every", "reward_seconds"), (1, None)),
    **dict.fromkeys(("publish_seconds", "fleet_wait_seconds", "rollout_wait_seconds"), (0, None)),
    # The range of numpy's generators.
    "seed": (0, 2**32 - 1),
}
_ABOVE_ZERO = ("num_train_epochs",)
# Below 1 these are a fraction of all steps, otherwise a number of steps.
_STEPS_OR_FRACTION = ("save_steps", "eval_steps", "logging_steps")
_BATCH = "per_device_train_batch_size"
# trl/scripts/grpo.py, rloo.py: reward_funcs_registry.
_REWARDS = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward", "get_soft_overlong_punishment")
_GENERATING = ("grpo", "rloo")
# Switch → prefixes of the flags that TRL silently ignores without it.
_SWITCHED: Mapping[str, tuple[str, ...]] = {
    "use_peft": ("lora_", "use_rslora", "use_dora"),
    "load_in_4bit": ("bnb_4bit_", "use_bnb_nested_quant"),
    "use_vllm": ("vllm_",),
}
# Words for no tracker, and for all that are installed.
_NO_NAMES = ("none", "all")
# The layers that a user or a runtime writes, weakest first.
_STRENGTH = ("runtime", "TrainJob env", CONFIG_FILE, "args")
# Flag → its keys that override other flags in TRL's scripts → those flags.
_LAID_OVER: Mapping[str, Mapping[str, str]] = {
    "model_init_kwargs": {"revision": "model_revision", "dtype": "dtype", "torch_dtype": "dtype"},
    "teacher_model_init_kwargs": {"revision": "teacher_model_revision"},
}


def contradictions(asked: Asked, table: FlagTable, settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield one problem for each setting that cannot work, or that contradicts another.

    Args:
        asked: what the user asks for.
        table: the method's flags, with the trainer's defaults.
        settings: the merged settings.
    """

    def number(name: str) -> float | None:
        text = settings[name].value if name in settings else table.flags[name].default if name in table.flags else None
        try:
            return float(str(text))
        except ValueError:
            return None

    on = _switches(settings)
    yield from _out_of_range(settings)
    yield from _share(asked.method, settings)
    yield from unknown_words(asked.method, settings)
    yield from mapping_problems(table, settings)
    if asked.config is not None and asked.content is None:
        # An unread file may set what is missing here.
        return
    yield from recomputing_problems(asked.accelerator, settings)
    yield from _exclusive(settings)
    if on("load_in_4bit") or on("load_in_8bit"):
        yield from _quantization(on("use_peft"), asked.accelerator)
    yield from sharding_problems(asked, table, settings, on)
    yield from _without_switch(table, settings, on)
    yield from _laid_over(settings)
    yield from _trackers(settings)
    yield from _ignored_epochs(settings)
    if asked.accelerator == "cpu" and _value(settings, "ddp_backend", "gloo") == "nccl":
        yield "--ddp_backend nccl needs GPUs: leave it out, or choose a runtime with an accelerator"
    if asked.accelerator != "cpu" and on("use_cpu"):
        yield (
            f"--use_cpu ({settings['use_cpu'].source}) trains on the CPU, but the runtime is for {asked.accelerator}: "
            "leave it out, or choose a runtime for cpu"
        )
    if chosen_attention(asked) == VARLEN:
        yield from (f"attn_implementation {VARLEN} {problem}: leave it out" for problem in varlen_problems(asked))
    yield from evaluation_problems(table, settings, number)
    yield from schedule_problems(asked, table, settings, number)
    yield from optimizer_problems(asked, table, settings)
    if "log_completions_hub_repo" in settings and not on("log_completions"):
        yield "--log_completions_hub_repo has no completions to upload: add --log_completions, or leave it out"
    yield from _of_method(asked, settings, number, on)
    if asked.method == refusals.METHOD:
        yield from refusals.refusals(asked, table, settings, number, on)
        yield from _generation_batch(asked.world_size, settings, number)


def _of_method(
    asked: Asked,
    settings: Mapping[str, Setting],
    number: Callable[[str], float | None],
    on: Callable[[str], bool],
) -> Iterator[str]:
    """Yield the problems that only the run's method has."""
    if asked.method in _GENERATING:
        yield from _rewards(settings)
        yield from _generation_batch(asked.world_size, settings, number)
    yield from _searched_batch(asked.method, settings)
    if asked.method == "distillation" and not _value(settings, "teacher_model_name_or_path", ""):
        yield "distillation needs a teacher: write --teacher_model_name_or_path <folder or Hub id>"
    if on("padding_free") and not on("packing") and asked.method == "sft" and number("max_length") is not None:
        yield "--padding_free without packing cuts no sample to max_length: add --packing, or write --max_length none"
    ends = _value(settings, "truncation_mode", "") == "keep_end"
    # Other strategies cut nothing off.
    if on("packing") and ends and _value(settings, "packing_strategy", "bfd") == "bfd":
        yield (
            "--truncation_mode keep_end has no effect with --packing, which keeps the start of a long sample: "
            "write --packing false, or leave out --truncation_mode"
        )
    if asked.method == "kto" and _value(settings, "loss_type", "kto") == "kto" and number(_BATCH) == 1:
        yield f"kto estimates its KL term from the batch: write --{_BATCH} 2 or more (accumulated steps do not count)"


def _quantization(has_adapter: bool, accelerator: str) -> Iterator[str]:
    if not has_adapter:
        yield "quantized weights cannot be trained, only an adapter on them: add --use_peft"
    if accelerator == "cpu":
        yield "a quantized model needs a GPU (bitsandbytes): leave out --load_in_4bit and --load_in_8bit on CPUs"


def self_contradictions(method: str, table: FlagTable, settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield one problem for each setting that is wrong on every runtime."""
    yield from _out_of_range(settings)
    yield from _share(method, settings)
    yield from _searched_batch(method, settings)
    yield from unknown_words(method, settings)
    yield from mapping_problems(table, settings)
    yield from own_optimizer_problems(settings)
    yield from own_schedule_problems(settings, _own_number(settings, "learning_rate", {}))
    yield from _exclusive(settings)
    yield from _laid_over(settings)
    yield from _trackers(settings)
    on = _switches(settings)
    # Without a word of the switch, a runtime may turn it on.
    yield from _without_switch(table, settings, lambda switch: switch not in settings or on(switch))
    if on("use_cpu"):
        yield from _quantized_on_a_cpu(settings, on)
    if method in _GENERATING:
        yield from _unknown_rewards(settings)
    if method == refusals.METHOD:
        yield from refusals.others(settings, on)
        yield from refusals.schedule(settings, lambda name: _own_number(settings, name, {"publish_every": 1}))
        yield from refusals.steps(settings, lambda name: _own_number(settings, name, {}))
        yield from _own_generation_batch(settings, (_BATCH, "gradient_accumulation_steps", "num_generations"))
    if method in _GENERATING:
        yield from _own_generation_batch(settings, (_BATCH, "num_generations"))


def _own_number(settings: Mapping[str, Setting], name: str, least: Mapping[str, float]) -> float | None:
    """Return a number that is set, else the least that it may be; None if that is not known."""
    try:
        return float(str(settings[name].value)) if name in settings else least.get(name)
    except ValueError:
        return None


def _own_generation_batch(settings: Mapping[str, Setting], parts: Sequence[str]) -> Iterator[str]:
    """Yield the problems with a generation batch that no number of processes makes right.

    Args:
        settings: what is set.
        parts: the flags whose numbers divide it.
    """
    batch = _own_number(settings, "generation_batch_size", {})
    if batch is None or batch < 1:
        return
    if _own_number(settings, "steps_per_generation", {}) is not None:
        yield "--generation_batch_size and --steps_per_generation set the same thing: choose one"
        return
    for name in parts:
        least = 2 if name == "num_generations" else 1
        number = _own_number(settings, name, {name: least})
        if number is not None and number >= least and (batch % number if name in settings else batch < number):
            yield f"--generation_batch_size is {batch:g}: write a multiple of --{name}, which is {number:g}" + (
                "" if name in settings else " or more"
            )


def _switches(settings: Mapping[str, Setting]) -> Callable[[str], bool]:
    """Return what tells whether a switch is on."""
    return lambda name: name in settings and is_true(settings[name].value)


def _quantized_on_a_cpu(settings: Mapping[str, Setting], on: Callable[[str], bool]) -> Iterator[str]:
    names = ("load_in_4bit", "load_in_8bit", *_SWITCHED["load_in_4bit"])
    asked = [name for name in settings if name.startswith(names) and (on(name) or settings[name].value != "false")]
    if asked:
        yield f"--use_cpu and --{asked[0]} exclude each other: a quantized model needs a GPU, so leave one of them out"


def _exclusive(settings: Mapping[str, Setting]) -> Iterator[str]:
    for pair in (("bf16", "fp16"), ("load_in_4bit", "load_in_8bit")):
        if all(name in settings and is_true(settings[name].value) for name in pair):
            yield f"--{pair[0]} and --{pair[1]} are both on: choose one"


def _rewards(settings: Mapping[str, Setting]) -> Iterator[str]:
    if not _value(settings, "reward_funcs", ()) and not _value(settings, "reward_model_name_or_path", ""):
        yield (
            f"the reward is missing: write --reward_funcs with one of {', '.join(_REWARDS)} or the dotted path of your "
            "function, or write --reward_model_name_or_path"
        )
    yield from _unknown_rewards(settings)


def _unknown_rewards(settings: Mapping[str, Setting]) -> Iterator[str]:
    for name in _value(settings, "reward_funcs", ()):
        if "." not in name and name not in _REWARDS:
            rewards = ", ".join(_REWARDS)
            yield f"--reward_funcs {name} is unknown: write one of {rewards}, or the dotted path of your function"


def _without_switch(table: FlagTable, settings: Mapping[str, Setting], on: Callable[[str], bool]) -> Iterator[str]:
    for switch, prefixes in _SWITCHED.items():
        # grpo_async cannot have these switches, and says so of their flags.
        if switch not in table.flags or on(switch) or (switch != "use_peft" and table.method == refusals.METHOD):
            continue
        for name, setting in settings.items():
            # A runtime may set them for users who turn the switch on.
            harmless = setting.source in ("runtime", "recipe") or setting.value == "false"
            if name.startswith(prefixes) and not harmless:
                yield f"--{name} ({setting.source}) has no effect without --{switch}: add --{switch}, or leave it out"


def _ignored_epochs(settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield a problem if the steps of a weaker layer would override the epochs of a stronger one."""
    steps, epochs = settings.get("max_steps"), settings.get("num_train_epochs")
    if steps is None or epochs is None or float(str(steps.value)) <= 0:
        return
    if {steps.source, epochs.source} <= {*_STRENGTH} and _STRENGTH.index(steps.source) < _STRENGTH.index(epochs.source):
        yield (
            f"--max_steps {steps.value} ({steps.source}) overrides --num_train_epochs {epochs.value} "
            f"({epochs.source}): add --max_steps -1, or leave out the epochs"
        )


def _laid_over(settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield one problem for each key that would load another model or type than plan and manifest say."""
    for flag, keys in _LAID_OVER.items():
        for key in mapping_in(settings, flag):
            if key in keys:
                yield f"--{flag} ({settings[flag].source}) sets {key}, which has its own flag: write --{keys[key]}"


def _trackers(settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield one problem for each tracker that transformers does not know."""
    value = _value(settings, "report_to", "none")
    names = value if isinstance(value, tuple) else (value,)
    for name in names:
        if name in _NO_NAMES:
            if len(names) > 1:
                yield f"--report_to {name} stands alone: leave it out, or the other names"
        elif name not in TRACKERS:
            close = difflib.get_close_matches(name, TRACKERS, n=1)
            advice = f"did you mean {close[0]}?" if close else f"write {', '.join(_NO_NAMES)}, {', '.join(TRACKERS)}"
            yield f"--report_to {name} ({settings['report_to'].source}) is not a tracker: {advice}"


def _out_of_range(settings: Mapping[str, Setting]) -> Iterator[str]:
    for name, setting in settings.items():
        if isinstance(setting.value, tuple) or setting.source == "recipe" or setting.value == NONE:
            continue
        given = f"--{name} is {setting.value} ({setting.source})"
        if name == "max_steps" and (float(setting.value) == 0 or float(setting.value) < -1):
            yield f"{given}: write 1 or more, or leave it out to use --num_train_epochs"
        if name in _ABOVE_ZERO and float(setting.value) <= 0:
            yield f"{given}, which trains nothing: write a number above 0"
        if name in _STEPS_OR_FRACTION and not _is_steps_or_fraction(float(setting.value)):
            yield f"{given}: write a whole number of steps, or a fraction of all steps below 1"
        if name in _RANGES:
            least, greatest = _RANGES[name]
            if least is not None and float(setting.value) < least:
                yield f"{given}: write {least:g} or more"
            if greatest is not None and float(setting.value) > greatest:
                yield f"{given}: write {greatest:g} or less"


def _searched_batch(method: str, settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield a problem if a method that trains groups would look for its batch size by itself."""
    searched = settings.get("auto_find_batch_size")
    if method in (*_GENERATING, refusals.METHOD) and searched is not None and is_true(searched.value):
        yield (
            f"--auto_find_batch_size ({searched.source}) could split the groups of {method}: leave it out, and "
            f"lower --{_BATCH}"
        )


def _share(method: str, settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield a problem if a distillation's loss is no mixture of its two divergences."""
    beta = settings.get("beta")
    if method == "distillation" and beta is not None and beta.value != NONE and not 0 <= float(str(beta.value)) <= 1:
        yield f"--beta is {beta.value} ({beta.source}): write a number from 0 to 1"


def _is_steps_or_fraction(value: float) -> bool:
    return 0 < value < 1 or (value >= 1 and value.is_integer())


def _generation_batch(
    world_size: int, settings: Mapping[str, Setting], number: Callable[[str], float | None]
) -> Iterator[str]:
    """Yield the problems that TRL finds with the generation batch (GRPOConfig and RLOOConfig: `__post_init__`)."""
    per_device, generations = number("per_device_train_batch_size"), number("num_generations")
    batch, steps = number("generation_batch_size"), number("steps_per_generation")
    if per_device is None or generations is None or per_device < 1 or generations < 2:
        return
    together = per_device * world_size
    where = f"per_device_train_batch_size {per_device:g} × {world_size} processes"
    if batch is not None and steps is not None:
        yield "--generation_batch_size and --steps_per_generation set the same thing: choose one"
        return
    if batch is not None:
        if batch % together:
            yield f"--generation_batch_size is {batch:g}: write a multiple of {together:g} ({where})"
    else:
        steps = steps or number("gradient_accumulation_steps") or 1
        batch = together * steps
        where += f" × {steps:g} steps"
    if batch % generations:
        yield (
            f"a generation batch of {batch:g} ({where}) cannot be split into groups of --num_generations "
            f"{generations:g}: change one of them so that {generations:g} divides the batch"
        )
    if evaluates(settings):
        evaluating = number("num_generations_eval") or generations
        evaluated = (number("per_device_eval_batch_size") or 8) * world_size
        if evaluated % evaluating:
            yield (
                f"an evaluation batch of {evaluated:g} cannot be split into groups of {evaluating:g} generations: "
                f"change --per_device_eval_batch_size so that {evaluating:g} divides the batch"
            )


def _value(settings: Mapping[str, Setting], name: str, default: str | tuple[str, ...]) -> str | tuple[str, ...]:
    return settings[name].value if name in settings else default
